"""Sound: WAV of every width, cut files, resampling, spectrograms and mel banks by torchaudio's formulas."""
from __future__ import annotations

import contextlib
import io
import struct
import wave

import numpy as np
import pytest
from pipec.compiler.check import check
from pipec.compiler.evaluate import evaluate
from pipec.kernels import audio, audiopower, table
from pipec.kernels.extensions import sound
from pipec.kernels.ops import BadRecord

EXTENSIONS = [None, *filter(None, [sound()])]   # NumPy alone, and ours where it is built


def wav(samples, width=2, rate=16_000, kind=1):
    """A WAV of integer samples [n, channels] (or floats, kind 3)."""
    if kind == 3:
        body = samples.astype("<f4").tobytes()
    elif width == 1:
        body = (samples + 128).astype(np.uint8).tobytes()
    elif width == 3:
        body = samples.astype("<i4").tobytes()
        body = b"".join(body[i : i + 3] for i in range(0, len(body), 4))
    else:
        body = samples.astype(f"<i{width}").tobytes()
    channels = samples.shape[1]
    head = struct.pack("<HHIIHH", kind, channels, rate, rate * channels * width, channels * width, width * 8)
    chunks = b"fmt " + struct.pack("<I", 16) + head + b"LIST\x03\0\0\0abc\0" + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


def decoded(data, cut="refuse"):
    samples, rate = audio.decode_audio.cpu(np.empty, data, cut)
    assert samples.dtype == np.float32 and samples.ndim == 2
    return samples, int(rate)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_of_every_width(width):
    top = 2 ** (8 * width - 1)
    samples = np.array([[0, -top], [top - 1, top // 2]], np.int64)
    got, rate = decoded(wav(samples, width))
    assert rate == 16_000
    np.testing.assert_array_equal(got, (samples / top).astype(np.float32))


def test_wav_as_the_standard_library_writes_it():
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.array([1, -2, 3], "<i2").tobytes())
    got, rate = decoded(out.getvalue())
    assert rate == 8000 and (got[:, 0] * 32768).tolist() == [1, -2, 3]
    floats = np.array([[0.25], [-1.5]], np.float32)
    np.testing.assert_array_equal(decoded(wav(floats, 4, kind=3))[0], floats)


def test_cut_and_empty_wav():
    data = wav(np.arange(100)[:, None])
    with pytest.raises(BadRecord, match="ends early") as e:
        decoded(data[:-50])
    assert e.value.code == "E0801" and "150 of 200" in e.value.label
    assert decoded(data[:-50], "fill")[0].shape == (75, 1)
    assert decoded(wav(np.zeros((0, 2))))[0].shape == (0, 2)
    with pytest.raises(BadRecord, match="ends early"):
        decoded(data[:30])


def test_lengths_that_were_never_filled_in():
    data = wav(np.arange(1000, 1100)[:, None])
    at = data.index(b"data") + 4
    for size, found in ((0xFFFFFFFF, 100), (0, None)):
        open_ended = data[:at] + struct.pack("<I", size) + data[at + 4 :]
        if found is None:
            with pytest.raises(BadRecord, match="says it has no samples, and more follows"):
                decoded(open_ended)
        assert decoded(open_ended, "fill")[0].shape == (100, 1)
    nothing = data[:at] + bytes(4)
    assert decoded(nothing + b"LIST\x04\0\0\0abcd")[0].shape == decoded(nothing + bytes(9))[0].shape == (0, 1)
    with pytest.raises(BadRecord, match="header doesn't fit its samples") as e:
        decoded(data[:22] + b"\xff\xff" + data[24:])
    assert "65,535 channels" in e.value.label


FORMS = [("WAV", "ULAW"), ("WAV", "ALAW"), ("WAV", "IMA_ADPCM"), ("RF64", "PCM_16"), ("W64", "PCM_24"), ("AIFF", "PCM_16"),
         ("AU", "PCM_16"), ("CAF", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None)]


@pytest.mark.parametrize("form, kind", FORMS)
def test_forms_that_a_library_reads(form, kind):
    soundfile = pytest.importorskip("soundfile")
    wave_, out = np.sin(np.arange(6000) * 0.05)[:, None] * [0.5, -0.5], io.BytesIO()
    soundfile.write(out, wave_, 48_000, format=form, subtype=kind)
    got, rate = decoded(out.getvalue())
    assert rate == 48_000 and got.shape[1] == 2 and 6000 <= len(got) < 6200   # ADPCM has blocks
    assert np.abs(got[:6000] - wave_).mean() < 0.02
    if form not in ("CAF", "OGG", "MP3", "FLAC") and kind != "IMA_ADPCM":   # a library reads silence behind what is there
        with pytest.raises(BadRecord, match="ends early"):
            decoded(out.getvalue()[:-1000])
        assert 4000 < len(decoded(out.getvalue()[:-1000], "fill")[0]) < 6000
    else:
        with contextlib.suppress(BadRecord):
            assert len(decoded(out.getvalue()[: len(out.getvalue()) // 2])[0]) < 6000


def test_what_is_no_sound():
    for data in (b"", b"not a sound", b"\x89PNG\r\n\x1a\n", b"fLaC" + bytes(20), wav(np.zeros((3, 1)))[:20] + bytes(40)):
        with pytest.raises(BadRecord) as e:
            decoded(data)
        assert len(e.value.reason) < 120
    with pytest.raises(BadRecord, match="this is a JPEG, not a sound it reads"):
        decoded(b"\xff\xd8\xff\xe0" + bytes(40))
    with pytest.raises(BadRecord) as e:
        decoded(b"fLaC" + bytes(20))
    assert "BytesIO" not in e.value.label


def test_mutated_wav_only_makes_bad_records():
    rng = np.random.default_rng(0)
    start = wav(np.arange(60).reshape(-1, 2))
    for _ in range(300):
        data = bytearray(start[: rng.integers(1, len(start) + 1)])
        for _ in range(3):
            data[rng.integers(len(data))] = rng.integers(256)
        with contextlib.suppress(BadRecord):
            decoded(bytes(data), ("refuse", "fill")[rng.integers(2)])


# --- resampling ---------------------------------------------------------------------------------


def resampled(x, rate, to, quality="hann"):
    return audio.resample.cpu(np.empty, x.astype(np.float32), rate, to, quality)


def test_resampled_lengths():
    for n, rate, to, want in ((44100, 44100, 16000, 16000), (1000, 44100, 16000, 363), (1, 48000, 16000, 1), (0, 8000, 16000, 0)):
        assert resampled(np.zeros(n), rate, to).shape == (want,)
    x = np.random.default_rng(0).normal(size=50).astype(np.float32)
    np.testing.assert_array_equal(resampled(x, 16000, 16000), x)


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("rate,to", [(44100, 16000), (8000, 16000), (48000, 8000), (3, 2), (211, 223)])
@pytest.mark.parametrize("quality, numbers", [("hann", (6, 0.99, 0)), ("kaiser_fast", (16, 0.85, 8.555504641634386)),
                                              ("kaiser_best", (64, 0.9475937167399596, 14.769656459379492))])
def test_resample_as_torchaudio(monkeypatch, rate, to, quality, numbers, extension):
    monkeypatch.setattr(audio, "sound", lambda: extension)
    x = np.random.default_rng(1).normal(size=700 if rate != 44100 else 13_000).astype(np.float32)   # many periods, or few
    np.testing.assert_allclose(resampled(x, rate, to, quality), torchaudio_resample(x, rate, to, *numbers), atol=2e-5)


def torchaudio_resample(x, rate, to, width, rolloff, beta):
    """torchaudio's sinc_interp_hann and sinc_interp_kaiser, restated."""
    g = np.gcd(rate, to)
    old, new = rate // g, to // g
    base = min(old, new) * rolloff
    reach = int(np.ceil(width * old / base))
    t = np.arange(0, -new, -1)[:, None] / new + np.arange(-reach, reach + old)[None] / old
    t = np.clip(t * base, -width, width)
    window = np.i0(beta * np.sqrt(1 - (t / width) ** 2)) / np.i0(beta) if beta else np.cos(t * np.pi / width / 2) ** 2
    kernel = np.sinc(t) * window * base / old
    padded = np.pad(x.astype(np.float64), (reach, reach + old))
    frames = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[1])[::old]
    return (frames @ kernel.T).reshape(-1)[: int(np.ceil(new * len(x) / old))]


def test_a_tone_keeps_its_frequency_and_what_is_too_high_goes():
    t = np.arange(44100) / 44100
    low = resampled(np.sin(2 * np.pi * 1000 * t), 44100, 16000)
    assert np.argmax(np.abs(np.fft.rfft(low))) == 1000
    high = resampled(np.sin(2 * np.pi * 10_000 * t), 44100, 16000)[200:-200]
    assert 20 * np.log10(np.abs(high).max()) < -40


def test_rates_that_cannot_be_met():
    for rate, to in ((0, 16000), (16000, -1), (99_999_989, 100_000_007)):
        with pytest.raises(BadRecord):
            resampled(np.zeros(10), rate, to)


# --- spectrograms -------------------------------------------------------------------------------


def test_numbers_of_frames():
    wave_ = np.zeros(16000, np.float32)
    assert audio.spectrogram.ref(wave_, 400, 160, True).shape == (101, 201)
    assert audio.spectrogram.ref(wave_, 400, 160, False).shape == (98, 201)
    assert audio.spectrogram.ref(wave_[:399], 400, 160, False).shape == (0, 201)
    assert audio.spectrogram.ref(wave_[:0], 400, 160, True).shape == (0, 201)
    assert audio.spectrogram.ref(wave_[:1], 400, 160, True).shape == (1, 201)


@pytest.mark.parametrize("win, hop", [(400, 160), (400, 399), (400, 400), (640, 7), (4, 1), (12, 5), (401, 160), (1024, 256),
                                      (4, 9), (14, 3), (18, 5), (486, 500), (2048, 8_999)])
@pytest.mark.parametrize("extension", EXTENSIONS)
def test_power_of_every_kind_of_window(monkeypatch, win, hop, extension):
    monkeypatch.setattr(audiopower, "sound", lambda: extension)
    x = np.random.default_rng(win + hop).normal(size=9_000).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), win)[::hop]
    want = np.abs(np.fft.rfft(frames * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(win) / win)), axis=1)) ** 2
    got = audio.spectrogram.cpu(np.empty, x, win, hop, False)
    np.testing.assert_allclose(got, want, atol=2e-6 * want.max())


@pytest.mark.parametrize("n", [1, 2, 199, 200, 201, 202, 1000])
def test_a_wave_is_mirrored_at_its_ends(n):
    x = np.random.default_rng(n).normal(size=n).astype(np.float32)
    for more in (1, 200):
        np.testing.assert_array_equal(audio._mirrored(x, more), np.pad(x, more, mode="reflect" if n > 1 else "edge"))


@pytest.mark.parametrize("rows, mels, bins", [(16, 80, 201), (17, 3, 65), (100, 1, 64), (33, 128, 513)])
def test_sums_over_bands(rows, mels, bins):
    x = np.random.default_rng(rows).normal(size=(rows, bins)).astype(np.float32)
    bank = audio.mel_bank.ref(mels, bins, 16_000, 0.0, 0.0 if mels > 3 else 300.0, "htk", "none")
    for weight in (bank, np.zeros_like(bank), np.ones_like(bank)):
        want = x.astype(np.float64) @ weight.T
        np.testing.assert_allclose(table.linear.cpu(np.empty, x, weight), want, atol=3e-5)
        if sound():
            made = sound().products(x, weight, np.empty((rows, mels), np.float32), bins)
            assert made == (np.count_nonzero(weight) * 8 <= bins * mels)
    for value in (np.inf, np.nan):   # zero times infinity is no number
        x[rows - 1, bins - 1] = value
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(np.isnan(table.linear.cpu(np.empty, x, bank)), np.isnan(x @ bank.T))


@pytest.mark.skipif(sound() is None, reason="the extension isn't built")
def test_arrays_that_do_not_fit_are_refused():
    f = np.float32
    tables, radices = audiopower._plan(400)
    for wave_, out, win, hop, t, r in (
            (559, 2 * 201, 400, 160, tables, radices), (560, 2 * 201 - 1, 400, 160, tables, radices),
            (560, 0, 400, 160, tables, radices), (560, 2 * 201, 402, 160, tables, radices),
            (560, 2 * 201, 400, 0, tables, radices), (560, 201, 400, 2**62, tables, radices),
            (560, 2 * 201, 400, 160, tables[1:], radices), (560, 2 * 201, 400, 160, tables, radices[1:]),
            (560, 2 * 201, 400, 160, tables, radices * 0), (560, 2 * 201, -400, 160, tables, radices)):
        with pytest.raises(ValueError, match="unlike sizes"):
            sound().powers(np.zeros(wave_, f), np.zeros(out, f), win, hop, t, r)
    sound().powers(np.zeros(560, f), np.zeros(2 * 201, f), 400, 160, tables, radices)
    for stride, before, weights, starts in ((0, 0, 2, [0]), (1, -1, 2, [0]), (1, 0, 3, [0, 0]), (1, 0, 2, [-1]),
                                            (1, 0, 2, [2**40]), (1, 0, 0, [0]), (1, 0, 2, []), (2**40, 0, 2, [0])):
        with pytest.raises(ValueError, match="unlike sizes"):
            sound().resample(np.zeros(9, f), np.zeros(9, f), stride, before, np.zeros(weights, f), np.array(starts, np.int64))


def test_spectrogram_as_torch():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(3).normal(size=3000).astype(np.float32)
    for center in (True, False):
        window = torch.hann_window(400)
        want = torch.stft(torch.tensor(x), 400, 160, window=window, center=center, return_complex=True).abs().pow(2).T
        got = audio.spectrogram.cpu(np.empty, x, 400, 160, center)
        np.testing.assert_allclose(got, want.numpy(), atol=1e-5 * float(want.max()))


def test_mel_bank_htk():
    """torchaudio.functional.melscale_fbanks, restated."""
    hertz = np.linspace(0, 8000, 201)
    mels = np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 82)
    points = 700 * (10 ** (mels / 2595) - 1)
    slopes = points[None] - hertz[:, None]
    widths = np.diff(points)
    want = np.maximum(0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:])).T
    got = audio.mel_bank.ref(80, 201, 16000, 0.0, 0.0, "htk", "none")
    assert got.shape == (80, 201) and got.dtype == np.float32
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_mel_bank_slaney():
    bank = audio.mel_bank.ref(40, 257, 16000, 0.0, 8000.0, "slaney", "slaney")
    areas = bank.sum(1) * (8000 / 256)
    np.testing.assert_allclose(areas[8:], 1, atol=0.15)
    with pytest.raises(BadRecord):
        audio.mel_bank.ref(40, 257, 16000, 0.0, 0.0, "bark", "none")


# --- the library's functions of sound ---------------------------------------------------------------


def library(tmp_path, lines, **arrays):
    """Values of `out` in the one record of these arrays."""
    np.savez(tmp_path / "s.npz", **{name: a[None] for name, a in arrays.items()})
    columns = "".join(f"  {name}: f32{list(a.shape)}\n" for name, a in arrays.items())
    text = f'seed 1\nschema S\n{columns}\npipeline train\n  from npz("{tmp_path}/s.npz") as S\n'
    text += "".join(f"  {line.strip()}\n" for line in lines.split("\n")) + "  emit out\n"
    return next(iter(evaluate(check(str(tmp_path / "p.pipe"), text=text))))["out"]


def test_pre_emphasis(tmp_path):
    """torchaudio.functional.preemphasis: the first sample stays."""
    x = np.random.default_rng(0).normal(size=50).astype(np.float32)
    got = library(tmp_path, "out = pre_emphasis(x)", x=x)
    np.testing.assert_allclose(got, np.concatenate([x[:1], x[1:] - np.float32(0.97) * x[:-1]]), atol=1e-6)


def test_power_to_db_and_mfcc(tmp_path):
    """librosa.power_to_db, and torchaudio.functional.create_dct(norm="ortho") after it."""
    power = (np.random.default_rng(1).random((6, 40)) ** 20).astype(np.float32)
    db = 10 * np.log10(np.maximum(power.astype(np.float64), 1e-10))
    db = np.maximum(db, db.max() - 80)
    np.testing.assert_allclose(library(tmp_path, "out = power_to_db(p)", p=power), db, atol=1e-4)
    n, k = np.arange(40), np.arange(13)
    dct = np.cos(np.pi / 40 * (n[:, None] + 0.5) * k) * np.sqrt(2 / 40)
    dct[:, 0] /= np.sqrt(2)
    np.testing.assert_allclose(library(tmp_path, "out = mfcc(p, 13)", p=power), db @ dct, atol=2e-3)


def test_add_noise_has_the_ratio_drawn(tmp_path):
    rng = np.random.default_rng(2)
    x, noise = rng.normal(size=400).astype(np.float32), (rng.normal(size=90) * 5).astype(np.float32)
    for low, high in ((6, 6), (-3, 3)):
        added = library(tmp_path, f"out ~ add_noise(x, z, {low}, {high})", x=x, z=noise) - x
        ratio = 10 * np.log10((x.astype(np.float64) ** 2).sum() / (added.astype(np.float64) ** 2).sum())
        assert low - 1e-3 <= ratio <= high + 1e-3
        np.testing.assert_allclose(added[:310], added[90:], atol=2e-6)      # the noise comes round
    np.testing.assert_array_equal(library(tmp_path, "out ~ add_noise(x, z, 1, 2)", x=x, z=noise * 0), x)


def test_spec_augment_cuts_bands_and_gaps(tmp_path):
    x = np.ones((60, 20), np.float32)
    got = library(tmp_path, "out ~ spec_augment(x, widest=5, longest=10)", x=x)
    lost = got == 0
    bands, gaps = lost.all(0), lost.all(1)
    assert (lost == (bands[None] | gaps[:, None])).all() and bands.sum() <= 10 and gaps.sum() <= 20 and lost.any()
    small = library(tmp_path, "out ~ spec_augment(x)", x=x[:2, :3])
    assert small.shape == (2, 3)
