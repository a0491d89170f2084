"""Kernels to machine code: loop IR goes in, verified objects lie in the compile cache afterwards.

A kernel's text goes through Numba, gets the loop over records around it and becomes a relocatable object for this CPU.
Numba is imported only when there is something to compile.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..runtime import caches, objects
from ..runtime.plan import KernelText
from .emit_numba import kernel_text
from .loops import Kernel

# Every record whose status is 0 on entry; -1 (too little memory) ends the kernel.
LOOP = """
define void @{symbol}(i64 %n, i64 %table, i64 %status, i64 %arena) {{
entry:
  %statuses = inttoptr i64 %status to i64*
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %r = phi i64 [ 0, %entry ], [ %next, %again ]
  %place = getelementptr i64, i64* %statuses, i64 %r
  %before = load i64, i64* %place
  %active = icmp eq i64 %before, 0
  br i1 %active, label %work, label %again
work:
  %offset = mul i64 %r, {stride}
  %row = add i64 %table, %offset
  %now = call i64 @{record}(i64 %row, i64 %arena)
  store i64 %now, i64* %place
  %short = icmp eq i64 %now, -1
  br i1 %short, label %done, label %again
again:
  %next = add i64 %r, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


@functools.cache
def machine() -> Any:
    """The target machine for this CPU, at full optimisation, for code that may lie anywhere."""
    binding, t = objects.llvm(), objects.target()
    return binding.Target.from_triple(t.triple).create_target_machine(
        cpu=t.cpu, features=t.features, opt=3, reloc="pic", codemodel="default"
    )


def object_code(kernel: Kernel, symbol: str) -> bytes:
    """The relocatable object of a kernel; `symbol` is the only one that is visible."""
    from .through_numba import module_text

    binding = objects.llvm()
    ir = module_text(kernel_text(kernel), symbol)
    loop = LOOP.format(record=f"{symbol}_record", symbol=symbol, stride=8 * len(kernel.arguments))
    module = binding.parse_assembly(ir + loop)
    module.triple, module.data_layout = objects.target().triple, str(machine().target_data)
    module.verify()
    tuning = binding.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_interleaving = tuning.loop_unrolling = True
    builder = binding.create_pass_builder(machine(), tuning)
    builder.getModulePassManager().run(module, builder)
    return bytes(machine().emit_object(module))


def build(kernels: Sequence[Kernel]) -> list[KernelText]:
    """Texts of the kernels; afterwards the cache holds an object for each."""
    texts: list[KernelText] = []
    for kernel in kernels:
        text = kernel_text(kernel)
        key = objects.key_of(text)
        if objects.fetch(key) is None:
            objects.store(key, object_code(kernel, objects.symbol_of(text)))
        texts.append(KernelText(kernel.name, text, key))
    caches.bound()
    return texts
