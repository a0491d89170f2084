"""Operators for sound: decoding, resampling, spectrograms and mel filter banks, with torchaudio's conventions.

WAV of plain numbers is read here; other formats need the package soundfile, imported when the first such record is met.
"""
from __future__ import annotations

import functools
import io
import math
import struct
from typing import Any

import numpy as np

from .audiopower import hann, powers
from .extensions import sound
from .imagefile import article, bad, sniff
from .ops import op

# Zero crossings of the sinc on either side, the share of the band that is kept, and the beta of a Kaiser window; 0 is
# Hann's. torchaudio's default, its "kaiser_fast" and its "kaiser_best", which are resampy's.
QUALITIES = {
    "hann": (6, 0.99, 0.0),
    "kaiser_fast": (16, 0.85, 8.555504641634386),
    "kaiser_best": (64, 0.9475937167399596, 14.769656459379492),
}
LARGEST_TABLE = 20_000_000
UNKNOWN = 0xFFFFFF00   # a length from here on: it was written before it was known
AT_ONCE = 32   # phases of a resampling that one product of matrices makes, and at least those of a lane
FEWEST = 8     # periods worth lanes of their own


# --- decoding -----------------------------------------------------------------------------------------------------


def _wav(alloc: Any, data: bytes, cut: str) -> tuple[Any, int]:
    """Samples f32[n, channels] and rate. The header's length is believed only as far as there are bytes."""
    form, at = None, 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"fmt " and at + 24 <= len(data):
            form = struct.unpack_from("<HHIIHH", data, at + 8)
            if form[0] == 0xFFFE and size >= 26 and at + 34 <= len(data):
                form = (struct.unpack_from("<H", data, at + 32)[0], *form[1:])
        if name == b"data":
            break
        at += 8 + size + (size & 1)
    else:
        raise bad("this WAV ends early", f"no samples in its {len(data):,} bytes")
    if form is None:
        raise bad("this WAV's header can't be read", "its format is missing")
    kind, channels, rate, _, _, bits = form
    body = data[at + 8 : at + 8 + size]
    if len(body) < size and cut == "refuse" and size < UNKNOWN:
        raise bad("this WAV ends early", f"{len(body):,} of {size:,} bytes of samples")
    if not size and _more(data, at + 8):   # a writer that could not go back to fill it in
        if cut == "refuse":
            raise bad("this WAV's header says it has no samples, and more follows", f"{len(data) - at - 8:,} bytes")
        body = data[at + 8 :]
    if kind in (1, 3) and 0 < len(body) < bits // 8 * channels:
        raise bad("this WAV's header doesn't fit its samples", f"{size:,} bytes of {channels:,} channels of {bits} bits")
    if kind not in (1, 3) or bits not in ((32, 64) if kind == 3 else (8, 16, 24, 32)) or not channels or not rate:
        raise bad("this WAV's samples can't be read", f"format {kind}, {bits} bits, {channels} channels, rate {rate}")
    width = bits // 8
    count = len(body) // (width * channels)
    return _samples(alloc, body[: count * width * channels], kind, width).reshape(count, channels), rate


def _more(data: bytes, at: int) -> bool:
    """Do bytes stand here that are no further chunk (whose name would be of letters)."""
    rest = data[at : at + 64]
    return bool(rest.strip(b"\0")) and not all(32 <= b < 127 for b in rest[:4])


def _own(data: bytes) -> bool:
    """Is a WAV of plain numbers, which is read here; µ-law, A-law and ADPCM aren't."""
    at = data.find(b"fmt ", 12, 4096)
    return not 0 < at <= len(data) - 10 or struct.unpack_from("<H", data, at + 8)[0] not in (2, 6, 7, 17, 49)


def _stated(data: bytes) -> int:
    """How many bytes a sound file that a library reads says it has, 0 where it doesn't. A library takes what is there."""
    match data[:4]:
        case b"RF64" if len(data) >= 28:
            return int(struct.unpack_from("<Q", data, 20)[0]) + 8
        case b"riff" if len(data) >= 24:
            return int(struct.unpack_from("<Q", data, 16)[0])
        case b"RIFF":
            parts = [8, struct.unpack_from("<I", data, 4)[0]]
        case b"FORM" | b"RIFX":
            parts = [8, struct.unpack_from(">I", data, 4)[0]]
        case b".snd" if len(data) >= 12:
            parts = [*struct.unpack_from(">II", data, 4)]
        case _:
            return 0
    return sum(parts) if max(parts) < UNKNOWN else 0


def _samples(alloc: Any, body: bytes, kind: int, width: int) -> Any:
    if kind == 3:
        return np.frombuffer(body, "<f4" if width == 4 else "<f8").astype(np.float32)
    if width == 1:
        return (np.frombuffer(body, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if width == 3:
        parts = np.frombuffer(body, np.uint8).reshape(-1, 3)
        whole = np.zeros((len(parts), 4), np.uint8)
        whole[:, 1:] = parts
        return (whole.reshape(-1).view("<i4") >> 8).astype(np.float32) / np.float32(2**23)
    whole = np.frombuffer(body, f"<i{width}")
    if width == 2:
        return _scaled(alloc, whole)
    return whole.astype(np.float32) / np.float32(2 ** (8 * width - 1))


def _scaled(alloc: Any, samples: Any) -> Any:
    """16-bit samples as f32 from -1 to 1, exactly."""
    return np.multiply(samples, np.float32(2**-15), out=alloc(samples.shape, np.float32), dtype=np.float32)


def _decoded(alloc: Any, data: Any, cut: str) -> tuple[Any, int]:
    data = data if isinstance(data, bytes) else bytes(data)
    if not data:
        raise bad("there is no data", "0 bytes")
    kind = sniff(data)
    if kind == "WAV sound" and _own(data):
        return _wav(alloc, data, cut)
    if not (kind.endswith(" sound") or (not kind and data[0] == 0xFF)):   # MP3s may begin with their first frame
        begins = f"begins with {data[:8].hex(' ')}"
        raise bad(f"this is {article(kind)}, not a sound it reads" if kind else "this is no sound it knows", begins)
    try:
        import soundfile
    except (ImportError, OSError):
        raise bad(f"reading {kind or 'MP3 sound'} needs the package soundfile (pip install 'pipec[sound]')") from None
    if len(data) < _stated(data) and cut == "refuse":
        raise bad(f"this {kind} ends early", f"{len(data):,} of {_stated(data):,} bytes")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.subtype == "PCM_16":   # the library is quicker where it needn't turn each sample into a float
                return _scaled(alloc, file.read(dtype="int16", always_2d=True)), int(file.samplerate)
            return file.read(dtype="float32", always_2d=True), int(file.samplerate)
    except (RuntimeError, ValueError, MemoryError, TypeError) as e:
        raise bad(f"this {kind or 'MP3 sound'} can't be decoded", str(e).rpartition(">: ")[2][:120]) from None


@op('decode_audio(data: bytes, cut: text = "refuse") -> (samples: f32[n, c], rate: i64)')
class decode_audio:
    """Decode a WAV, FLAC, Ogg, MP3, AIFF, AU or CAF, known by its content, to samples from -1 to 1 and their rate per second.

    A file that ends early is bad; `cut="fill"` takes the samples that a cut WAV holds. All but WAV of plain numbers (8 to 32
    bits, floats) need soundfile.
    """

    least_sizes = {("samples", 1): 1}  # noqa: RUF012

    def ref(data: Any, cut: str) -> Any:
        samples, rate = _decoded(np.empty, data, cut)
        return samples, np.int64(rate)

    def cost(args: Any, results: Any) -> Any:
        count = math.prod(results[0])   # fewer than two bytes for each: they are packed
        return 40_000 + count * (14 if args[0][-1] < 1.8 * count else 0.6)

    def cpu(alloc: Any, data: bytes, cut: str) -> Any:
        samples, rate = _decoded(alloc, data, cut)
        return samples, np.int64(rate)


def _placed(alloc: Any, values: Any) -> Any:
    out = alloc(values.shape, np.float32)
    np.copyto(out, values)
    return out


# --- resampling -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=32)
def _table(old: int, new: int, quality: str) -> tuple[Any, Any, int]:
    """For each of `new` phases: weights [new, taps], and the offset of its first tap."""
    if quality not in QUALITIES:
        raise bad("`quality` is " + ", ".join(f'"{q}"' for q in QUALITIES), quality)
    crossings, rolloff, beta = QUALITIES[quality]
    base = min(old, new) * rolloff
    reach = math.ceil(crossings * old / base)
    taps = 2 * reach + 1
    if new * taps + AT_ONCE * old > LARGEST_TABLE:
        raise bad("these rates have no common step short enough to resample by", f"{old:,} to {new:,}")
    phase = np.arange(new)
    whole = phase * old // new
    distance = (np.arange(-reach, reach + 1) + whole[:, None]) / old - (phase / new)[:, None]
    t = np.clip(distance * base, -crossings, crossings)
    if beta:
        window = np.i0(beta * np.sqrt(1 - (t / crossings) ** 2)) / np.i0(beta)
    else:
        window = np.cos(t * (np.pi / crossings / 2)) ** 2
    weights = np.sinc(t) * window * (base / old)
    return weights.astype(np.float32), whole - reach, taps


@functools.lru_cache(maxsize=32)
def _blocks(old: int, new: int, quality: str) -> tuple[int, int, int, list[tuple[int, Any]]]:
    """The table as products of matrices: `turns` periods at once, samples needed before and after a wave, and for each group
    of phases the first sample of its inputs and weights [inputs, phases]."""
    weights, offsets, taps = _table(old, new, quality)
    turns = max(1, AT_ONCE // new)
    before = -int(offsets.min())
    starts = np.concatenate([offsets + before + old * k for k in range(turns)])
    groups = []
    for a in range(0, turns * new, AT_ONCE):
        chosen = starts[a : a + AT_ONCE]
        first = int(chosen[0])
        block = np.zeros((int(chosen[-1]) - first + taps, len(chosen)), np.float32)
        for j, start in enumerate(chosen.tolist()):
            block[start - first : start - first + taps, j] = weights[(a + j) % new]
        groups.append((first, block))
    return turns, before, int(starts.max()) + taps, groups


@functools.lru_cache(maxsize=32)
def _lanes(old: int, new: int, quality: str) -> tuple[int, int, Any, Any]:
    """What the extension is told: samples of a lane's periods, those before the wave, weights and first sample of each value."""
    weights, offsets, _ = _table(old, new, quality)
    turns = max(1, AT_ONCE // new)
    before = -int(offsets.min())
    starts = np.concatenate([offsets + before + old * k for k in range(turns)])
    return old * turns, before, np.tile(weights, (turns, 1)), starts.astype(np.int64)


def _resampled(alloc: Any, wave: Any, rate: int, to: int, quality: str) -> Any:
    if rate <= 0 or to <= 0:
        raise bad("a rate must be above 0", f"{rate} to {to}")
    if rate == to or len(wave) == 0:
        return _placed(alloc, wave)
    step = math.gcd(rate, to)
    old, new = rate // step, to // step
    count = -(-len(wave) * new // old)
    if (extension := sound()) and count >= new * FEWEST:
        out = alloc((count,), np.float32)
        extension.resample(np.ascontiguousarray(wave), out, *_lanes(old, new, quality))
        return out
    turns, before, after, groups = _blocks(old, new, quality)
    stride, width = old * turns, new * turns
    rows = -(-count // width)
    padded = np.zeros(rows * stride + after + before, np.float32)
    part = wave[: len(padded) - before]
    padded[before : before + len(part)] = part
    out = alloc((rows, width), np.float32)
    for k, (first, block) in enumerate(groups):
        inputs = np.lib.stride_tricks.as_strided(padded[first:], (rows, len(block)), (4 * stride, 4), writeable=False)
        if len(block) > stride:   # rows that overlap are no matrix for a library
            inputs = np.ascontiguousarray(inputs)
        np.matmul(inputs, block, out=out[:, k * AT_ONCE : k * AT_ONCE + block.shape[1]])
    return out.reshape(-1)[:count]


@op('resample(wave: f32[n], rate: i64, to: i64, quality: text = "hann") -> f32[m]')
class resample:
    """A wave of `rate` samples a second as one of `to`, ceil(n × to / rate) samples long.

    A windowed sinc. `quality="hann"` has 6 zero crossings and is cut off at 0.99 of the lower band, torchaudio's
    default; "kaiser_fast" has 16 and 0.85, "kaiser_best" 64 and 0.948, as resampy's. An equal rate changes nothing.
    The order of its sums isn't fixed: within 1e-6 of full scale.
    """

    def ref(wave: Any, rate: int, to: int, quality: str) -> Any:
        return _resampled(np.empty, wave, int(rate), int(to), quality)

    def cost(args: Any, results: Any) -> Any:
        return 15_000 + 0.5 * args[0][0] + 0.5 * results[0][0]

    def cpu(alloc: Any, wave: Any, rate: int, to: int, quality: str) -> Any:
        return _resampled(alloc, wave, int(rate), int(to), quality)


# --- spectrograms -----------------------------------------------------------------------------------------------------


def _mirrored(wave: Any, more: int) -> Any:
    """The wave with `more` samples before and after it, mirrored at its ends."""
    if len(wave) <= more:
        return np.pad(wave, more, mode="reflect" if len(wave) > 1 else "edge")
    end = len(wave) + more
    out = np.empty(end + more, np.float32)
    out[more:end] = wave
    out[:more] = wave[more:0:-1]
    out[end:] = wave[-2 : -more - 2 : -1]
    return out


def _power(alloc: Any, wave: Any, win: int, hop: int, center: bool) -> Any:
    if win <= 0 or hop <= 0:
        raise bad("a window and its step must be above 0", f"window {win}, step {hop}")
    if center and len(wave):
        wave = _mirrored(wave, win // 2)
    if len(wave) < win:
        return alloc((0, win // 2 + 1), np.float32)
    out = alloc(((len(wave) - win) // hop + 1, win // 2 + 1), np.float32)
    powers(out, wave, win, hop)
    return out


@op("spectrogram(wave: f32[n], win: i64, hop: i64, center: bool = true) -> f32[t, win // 2 + 1]")
class spectrogram:
    """The power of each frequency in each frame of `win` samples, a frame every `hop` samples (periodic Hann window).

    With `center` the wave is mirrored at both ends and there are n // hop + 1 frames, as torchaudio's default; without,
    frames lie inside the wave, and one shorter than a window has none. The order of its sums isn't fixed: within 1e-5 of
    the greatest power.
    """

    def ref(wave: Any, win: int, hop: int, center: bool) -> Any:
        return _power(np.empty, wave, int(win), int(hop), bool(center))

    def cost(args: Any, results: Any) -> Any:
        return 25_000 + 1.7 * math.prod(results[0])

    def cpu(alloc: Any, wave: Any, win: int, hop: int, center: bool) -> Any:
        return _power(alloc, wave, int(win), int(hop), bool(center))

    def gpu(xp: Any, wave: Any, win: int, hop: int, center: bool) -> Any:
        if win <= 0 or hop <= 0:
            raise bad("a window and its step must be above 0", f"window {win}, step {hop}")
        if center and len(wave):
            wave = xp.pad(wave, win // 2, mode="reflect" if len(wave) > 1 else "edge")
        count = max(0, (len(wave) - win) // hop + 1)
        frames = wave[hop * xp.arange(count)[:, None] + xp.arange(win)]
        spectrum = xp.fft.rfft(frames * xp.asarray(hann(win)), axis=1)
        return (spectrum.real**2 + spectrum.imag**2).astype(xp.float32)


def _to_mel(hertz: Any, scale: str) -> Any:
    hertz = np.asarray(hertz, np.float64)
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + hertz / 700.0)
    return np.where(hertz < 1000, hertz * 3 / 200, 15 + np.log(np.maximum(hertz, 1) / 1000) * 27 / np.log(6.4))


def _to_hertz(mel: Any, scale: str) -> Any:
    if scale == "htk":
        return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mel - 15)))


@functools.lru_cache(maxsize=32)
def _bank(mels: int, bins: int, rate: int, low: float, high: float, scale: str, norm: str) -> Any:
    if scale not in ("htk", "slaney") or norm not in ("none", "slaney"):
        raise bad('`scale` is "htk" or "slaney", `norm` is "none" or "slaney"', f"{scale}, {norm}")
    top = high if high > 0 else rate / 2
    points = _to_hertz(np.linspace(_to_mel(low, scale), _to_mel(top, scale), mels + 2), scale)
    hertz = np.linspace(0, rate // 2, bins)
    widths = np.maximum(np.diff(points), 1e-30)
    slopes = points[:, None] - hertz
    bank = np.maximum(0, np.minimum(-slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]))
    if norm == "slaney":
        bank *= (2 / np.maximum(points[2:] - points[:-2], 1e-30))[:, None]
    return bank.astype(np.float32)


@op('mel_bank(mels: i64, bins: i64, rate: i64, low: f32 = 0.0, high: f32 = 0.0, scale: text = "htk", '
    'norm: text = "none") -> f32[mels, bins]')
class mel_bank:
    """Triangular filters that sum the `bins` frequencies of a spectrogram into mels, from `low` to `high` hertz.

    `high=0` is half the rate. `scale` is "htk" or "slaney"; `norm="slaney"` divides each filter by its width.
    The defaults are torchaudio's; librosa's are scale="slaney", norm="slaney".
    """

    def ref(mels: Any, bins: int, rate: int, low: float, high: float, scale: str, norm: str) -> Any:
        return _bank(int(mels), int(bins), int(rate), float(low), float(high), scale, norm)

    def cost(args: Any, results: Any) -> Any:
        return 2_000 + 0.6 * math.prod(results[0])   # made once, kept

    def cpu(alloc: Any, mels: int, bins: int, rate: int, low: float, high: float, scale: str, norm: str) -> Any:
        return _bank(int(mels), int(bins), int(rate), float(low), float(high), scale, norm)
