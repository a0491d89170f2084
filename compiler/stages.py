"""The stages of a pipeline: one function per stage, from its arguments to a stream node and the frame it delivers.

STREAM NODES, exactly as every reader of the graph may rely on them.

Each stream node has the type `Type("stream", parts=((field, Type), …))`: the fields of the frame it delivers, in
order. A dim in these types is an int or an i64 node in terms of the *same* frame: `count`, `extent(field=…, axis=…)`
(fields with an equal dim name the same node, that of the first such field), or an expression of `epoch` and `param`.
A struct field `clip` with parts is stored as the fields "clip.samples", "clip.rate".
Args that are values are in terms of the `field` nodes of args[0]'s frame. `n` and the like are i64 nodes: a `const`, or
below `share` also an expression of `param` nodes, or of `epoch` where it says so. Everything else is an attr.

New frame (fields are new; a `map` stands before each but `source mix zip`): source each batch window pack mix zip sample
share. Same frame: where check shuffle take repeat shard skip_bad balance. A `map` stands also before `emit`.

op        args                      attrs
source                              kind      "tar" "folder" "npz" "npy" "bin" … (compiler.sources.KINDS)
                                    paths     tuple of texts; {name} put in, {a..b} expanded; globs * ? [a-z] ** not expanded
                                    options   ((name, value), …), only those written, sorted by name
                                    columns   ((field, names, type text), …); names: a tuple with one entry per stacked
                                              column ("I{1..13}": 13 entries, stacked along the first dim; else 1), each
                                              a tuple of alternatives ("flac|wav": the first one present); type text as
                                              "i32?[13]", "u8[h, w, 3]": a name is a size of the data (same name = equal,
                                              else E0803), "_" any size
map       stream, value…            names     the new frame's fields, one value each (never a struct)
where     stream, condition
check     stream, condition
shuffle   stream                    chunk mix window   ints, 0 = not given: whole (0,0,0), (c, m, 0), (0, 0, w)
                                    key       text: the draw path of this shuffle, "train/shuffle"; a second one in
                                              the same pipeline has "train/shuffle2"
take      stream, n                           the first n records
repeat    stream, n?                has       ("n",) or (): without n for ever; the turn joins the record's id
shard     stream
skip_bad  stream                    at_most   float
balance   stream, value             field     name of the field; value: its node in this frame
                                    key       text, the draw path "train/balance"
each      stream                    fields    tuple of names; their first dim is dropped, others are repeated
batch     stream, n?, by?, budget?  has       which of ("n", "by", "budget") are there, in this order (n xor budget)
                                    whole     bool: a smaller last batch is left out; the new first dim is n itself
                                    pad       bool: fields whose size differs are padded to the largest and become `?`
                                    edges     tuple of ints, rising: batches hold records with the same
                                              bisect_left(edges, by); () without edges: sorted in batches of like length
window    stream, n, stride         rest      "keep" (smaller last ones, dim `count`) | "drop" (dim n)
                                    pad       bool: the last one is filled up with missing places (dim n, every field `?`)
pack      stream, n, by             open      int, rows open at once; fields (whose first dim is `by`) are laid end to
                                    fields    end in rows of n, `?`; the new i64?[n] fields `segment` (1, 2, …) and
                                              `position` (0, 1, … in each record) come last. Other fields have one
                                              entry per record in the row: first dim `count`
mix       streams…                  names     draw-path part of each branch; weights: floats summing to 1, () = take
                                    weights   turns; until: "first" | "all" (each seen once, shorter ones repeat) or an
                                    until     int: that many records; key: draw path "train/mix"
                                    key
zip       streams…                  names     fields of stream k are names[k] + "." + field; ends with the first
sample    stream, other             name      fields of `stream`, then name + "." + field of a record of `other` chosen
                                    path      uniformly by the draw `path`; times: 0, or the number of independent
                                    times     choices, then a first dim `times` and index k joins the path
share     stream
emit      stream                    names     what leaves, in order; args[0] is a map with just these names
"""
from __future__ import annotations
