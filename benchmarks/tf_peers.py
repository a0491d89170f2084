"""tf.data as peer for W4 to W7 (photos are in `image_peers`): what a user writes, and whole batches where that is quicker.

Pipelines are made once and read as NumPy arrays, with as many threads as the other loaders have.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import audio_peers, data, table_peers, token_peers

LENGTH = token_peers.LENGTH
CIFAR_MEAN, CIFAR_STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
Epochs = Callable[[int], Iterable[Any]]


def tensorflow(threads: int) -> Any:
    """The library, quiet, with so many threads."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return tf


def epochs(tf: Any, made: Any, threads: int) -> Epochs:
    """`epoch(i)` of a finished pipeline."""
    options = tf.data.Options()
    options.threading.private_threadpool_size, options.deterministic = threads, False
    ready = made.prefetch(tf.data.AUTOTUNE).with_options(options)
    return lambda _: ready.as_numpy_iterator()


# --- W4 -------------------------------------------------------------------------------------------------------------------


def cifar(workload: str, threads: int) -> Epochs:
    """One image at a time."""
    import numpy as np

    tf = tensorflow(threads)
    loaded = np.load(data.FOLDER / "cifar10.npz")
    images, labels = loaded["x_train"], loaded["y_train"].astype(np.int64)
    mean, std = tf.constant(CIFAR_MEAN), tf.constant(CIFAR_STD)

    def made(image: Any, label: Any) -> Any:
        moved = tf.image.random_crop(tf.pad(image, [[4, 4], [4, 4], [0, 0]]), [32, 32, 3])
        pixels = (tf.cast(tf.image.random_flip_left_right(moved), tf.float32) - mean) / std
        return tf.cast(tf.transpose(pixels, [2, 0, 1]), tf.float16), label

    source = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images))
    mapped = source.map(made, num_parallel_calls=threads, deterministic=False)
    return epochs(tf, mapped.batch(token_peers.BATCH["W4"], drop_remainder=True), threads)


def cifar_batched(workload: str, threads: int) -> Epochs:
    """Whole batches by gathers."""
    import numpy as np

    tf = tensorflow(threads)
    loaded = np.load(data.FOLDER / "cifar10.npz")
    images, labels = tf.constant(loaded["x_train"]), tf.constant(loaded["y_train"].astype(np.int64))
    mean, std, size = tf.constant(CIFAR_MEAN), tf.constant(CIFAR_STD), token_peers.BATCH["W4"]

    def made(numbers: Any) -> Any:
        padded = tf.pad(tf.gather(images, numbers), [[0, 0], [4, 4], [4, 4], [0, 0]])
        shift, steps = tf.random.uniform([size, 2], 0, 9, tf.int32), tf.range(32)
        rows, columns = shift[:, :1] + steps, shift[:, 1:] + steps
        columns = tf.where(tf.random.uniform([size, 1]) < 0.5, tf.reverse(columns, [1]), columns)
        part = tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)
        pixels = tf.cast((tf.cast(part, tf.float32) - mean) / std, tf.float16)
        return tf.transpose(pixels, [0, 3, 1, 2]), tf.gather(labels, numbers)

    count = len(loaded["y_train"])
    numbers = tf.data.Dataset.range(count).shuffle(count).batch(size, drop_remainder=True)
    return epochs(tf, numbers.map(made, num_parallel_calls=threads), threads)


# --- W5 -------------------------------------------------------------------------------------------------------------------


def tokens(workload: str, threads: int) -> Epochs:
    """One window at a time, as users write it."""
    import numpy as np

    tf = tensorflow(threads)
    ids = tf.constant(np.fromfile(data.FOLDER / "tokens.bin", np.uint16))

    def window(number: Any) -> Any:
        found = tf.cast(tf.slice(ids, [number * LENGTH], [LENGTH + 1]), tf.int64)
        return found[:-1], found[1:]

    count = (token_peers.TOKENS - 1) // LENGTH
    mapped = tf.data.Dataset.range(count).shuffle(count).map(window, num_parallel_calls=threads, deterministic=False)
    return epochs(tf, mapped.batch(token_peers.BATCH["W5"], drop_remainder=True), threads)


def tokens_batched(workload: str, threads: int) -> Epochs:
    """Window numbers are batched, each batch is one gather."""
    import numpy as np

    tf = tensorflow(threads)
    ids = tf.constant(np.fromfile(data.FOLDER / "tokens.bin", np.uint16))
    steps = tf.range(LENGTH + 1, dtype=tf.int64)

    def windows(numbers: Any) -> Any:
        found = tf.cast(tf.gather(ids, numbers[:, None] * LENGTH + steps), tf.int64)
        return found[:, :-1], found[:, 1:]

    count = (token_peers.TOKENS - 1) // LENGTH
    numbers = tf.data.Dataset.range(count).shuffle(count).batch(token_peers.BATCH["W5"], drop_remainder=True)
    return epochs(tf, numbers.map(windows, num_parallel_calls=threads), threads)


# --- W6 -------------------------------------------------------------------------------------------------------------------


def clicks(workload: str, threads: int) -> Epochs:
    """Row groups read by pyarrow, gaps filled there; logarithms, hashes and buckets as TensorFlow's operators."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    tf = tensorflow(threads)
    pa.set_cpu_count(threads)
    file = pq.ParquetFile(table_peers.path())
    words, numbers = table_peers.CATS[:13], table_peers.CATS[13:]
    edges = [float(e) for e in table_peers.EDGES]

    def groups() -> Iterator[Any]:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            counts = np.stack([table[k].combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
                               for k in table_peers.COUNTS], 1)
            texts = np.stack([table[k].combine_chunks().fill_null("").to_numpy(zero_copy_only=False) for k in words], 1)
            ids = np.stack([table[k].combine_chunks().fill_null(-1).to_numpy(zero_copy_only=False) for k in numbers], 1)
            yield counts, texts, ids

    def made(counts: Any, texts: Any, ids: Any) -> Any:
        dense = tf.math.log1p(tf.cast(tf.maximum(counts, 0), tf.float32))
        age = tf.cast(tf.searchsorted(tf.constant(edges), tf.cast(counts[:, 0], tf.float32)), tf.int64)
        named = tf.where(texts == "", tf.constant(0, tf.int64), tf.strings.to_hash_bucket_fast(texts, 100_000))
        mixed = tf.bitwise.bitwise_xor(ids, tf.bitwise.right_shift(ids, tf.constant(33, tf.int64))) * -49064778989728563
        mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, tf.constant(33, tf.int64)))
        known = tf.where(ids < 0, tf.constant(0, tf.int64), mixed % ([100_000] * 12 + [1000]))
        last = known[:, 12:] * 16 + age[:, None]
        return dense, tf.concat([named, known[:, :12], last], 1)

    kinds = (tf.TensorSpec((None, 13), tf.int32), tf.TensorSpec((None, 13), tf.string), tf.TensorSpec((None, 13), tf.int64))
    mapped = tf.data.Dataset.from_generator(groups, output_signature=kinds).map(made, num_parallel_calls=threads)
    return epochs(tf, mapped.rebatch(table_peers.BATCH["W6"], drop_remainder=True), threads)


# --- W7 -------------------------------------------------------------------------------------------------------------------


def speech(workload: str, threads: int) -> Epochs:
    """Samples by soundfile and soxr in a Python function, spectra and mels by tf.signal."""
    import soundfile
    import soxr

    tf = tensorflow(threads)
    rate = audio_peers.RATE
    bank = tf.signal.linear_to_mel_weight_matrix(80, 201, rate, 0.0, rate / 2)
    files = sorted(str(p) for p in audio_peers.folder().glob("clip*"))

    def read(path: bytes) -> Any:
        wave, has = soundfile.read(path.decode(), dtype="float32")
        return wave if has == rate else soxr.resample(wave, has, rate, "HQ")

    def features(path: Any) -> Any:
        wave = tf.ensure_shape(tf.numpy_function(read, [path], tf.float32), [None])
        frames = tf.signal.stft(tf.pad(wave, [[200, 200]], "REFLECT"), 400, 160, 400)
        feats = tf.math.log(tf.square(tf.abs(frames)) @ bank + 1e-6)
        return feats, tf.shape(feats, tf.int64)[0]

    mapped = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).map(features, threads, deterministic=False)
    return epochs(tf, mapped.padded_batch(audio_peers.BATCH["W7"], ([None, 80], [])), threads)


MODULE = {"tf.data": "tensorflow", "tf.data-batched": "tensorflow"}
DIFFERS = {
    "W6": {"tf.data": "no tensorflow-io: row groups read by pyarrow, texts through Python; FarmHash of texts"},
    "W7": {"tf.data": "no tensorflow-io: read by soundfile, resampled by soxr in Python; HTK's mels in TensorFlow's form"}}
PEERS: dict[str, dict[str, Callable[[str, int], Epochs]]] = {
    "W4": {"tf.data": cifar, "tf.data-batched": cifar_batched},
    "W5": {"tf.data": tokens, "tf.data-batched": tokens_batched},
    "W6": {"tf.data": clicks}, "W7": {"tf.data": speech}}
