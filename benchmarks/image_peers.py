"""Loaders of photos (W1, W1u8, W2, W3) as their users write them: `PEERS[name](workload, threads)` gives `epoch(i)`.

All read the same JPEG files, draw the same kind of boxes and deliver the same shapes and dtypes. What differs is said in
`DIFFERS`. `MODULE` is what must be importable.
"""
from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import data

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH = {"W1": 128, "W1u8": 128, "W2": 128, "W3": 32, "W3full": 32}
Epochs = Callable[[int], Iterable[Any]]
MODULE = {"pillow": "torch", "opencv": "cv2", "albumentations": "albumentations", "torchvision": "torchvision",
          "webdataset": "webdataset", "dali": "nvidia.dali", "spdl": "spdl.pipeline", "ffcv": "ffcv",
          "tf.data": "tensorflow", "grain": "grain"}
DIFFERS = {
    "opencv": "bilinear without antialiasing", "albumentations": "bilinear without antialiasing",
    "spdl": "bilinear without antialiasing", "grain": "bilinear without antialiasing",
    "ffcv": "reads a file of its own, JPEG at quality 90; area resize", "tf.data": "a normalised box, cut by the decoder",
}


def files(workload: str) -> list[str]:
    folder = data.FOLDER / ("large" if workload.startswith("W3") else "jpeg")
    return sorted(str(p) for p in folder.glob("*/*.jpg"))


def label(path: str) -> int:
    return int(Path(path).parent.name[5:])


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params: (top, left, height, width)."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def shorter_256(height: int, width: int) -> tuple[int, int]:
    return (256, 256 * width // height) if height <= width else (256 * height // width, 256)


# --- torch's DataLoader ---------------------------------------------------------------------------------------------------


def _torch_loader(workload: str, threads: int, made: Callable[[str], Any], tensor: bool = False) -> Epochs:
    """`made(path)`: u8 H×W×3 after crop and flip, or with `tensor` what the loader shall stack."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    listed = files(workload)
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    class Photos(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(listed)

        def __getitem__(self, i: int) -> Any:
            pixels = made(listed[i])
            if tensor:
                return pixels, label(listed[i])
            pixels = np.ascontiguousarray(pixels)
            if workload == "W1u8":
                return torch.from_numpy(pixels), label(listed[i])
            image = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255)
            return image.sub_(mean).div_(std), label(listed[i])

    loader = DataLoader(Photos(), batch_size=BATCH[workload], shuffle=workload != "W2", num_workers=threads,
                        persistent_workers=True)
    return lambda _: loader


def pillow(workload: str, threads: int) -> Epochs:
    import numpy as np
    from PIL import Image

    def made(path: str) -> Any:
        image = Image.open(path).convert("RGB")
        if workload == "W2":
            h, w = shorter_256(image.height, image.width)
            image = image.resize((w, h), Image.Resampling.BILINEAR)
            top, left = (h - 224) // 2, (w - 224) // 2
            return np.asarray(image.crop((left, top, left + 224, top + 224)))
        top, left, h, w = random_box(image.height, image.width)
        pixels = np.asarray(image.crop((left, top, left + w, top + h)).resize((224, 224), Image.Resampling.BILINEAR))
        return pixels[:, ::-1] if random.random() < 0.5 else pixels

    return _torch_loader(workload, threads, made)


def opencv(workload: str, threads: int) -> Epochs:
    import cv2

    cv2.setNumThreads(0)

    def made(path: str) -> Any:
        image = cv2.cvtColor(cv2.imread(path, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        if workload == "W2":
            h, w = shorter_256(*image.shape[:2])
            image = cv2.resize(image, (w, h), interpolation=cv2.INTER_LINEAR)
            top, left = (h - 224) // 2, (w - 224) // 2
            return image[top : top + 224, left : left + 224]
        top, left, h, w = random_box(*image.shape[:2])
        image = cv2.resize(image[top : top + h, left : left + w], (224, 224), interpolation=cv2.INTER_LINEAR)
        return cv2.flip(image, 1) if random.random() < 0.5 else image

    return _torch_loader(workload, threads, made)


def albumentations(workload: str, threads: int) -> Epochs:
    import albumentations as a
    import cv2
    import numpy as np
    import torch

    cv2.setNumThreads(0)
    last = [] if workload == "W1u8" else [a.Normalize(MEAN, STD)]
    first = [a.SmallestMaxSize(256), a.CenterCrop(224, 224)] if workload == "W2" else [
        a.RandomResizedCrop((224, 224)), a.HorizontalFlip(p=0.5)]
    transform = a.Compose([*first, *last])

    def made(path: str) -> Any:
        image = cv2.cvtColor(cv2.imread(path, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        image = transform(image=image)["image"]
        order = (0, 1, 2) if workload == "W1u8" else (2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(image.transpose(order)))

    return _torch_loader(workload, threads, made, tensor=True)


def torchvision(workload: str, threads: int) -> Epochs:
    import torch
    from torchvision.io import ImageReadMode, decode_image, read_file
    from torchvision.transforms import v2

    first = [v2.Resize(256, antialias=True), v2.CenterCrop(224)] if workload == "W2" else [
        v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    last = [] if workload == "W1u8" else [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    transform = v2.Compose([*first, *last])

    def made(path: str) -> Any:
        image = transform(decode_image(read_file(path), mode=ImageReadMode.RGB))
        return image.permute(1, 2, 0).contiguous() if workload == "W1u8" else image

    return _torch_loader(workload, threads, made, tensor=True)


def webdataset(workload: str, threads: int) -> Epochs:
    import numpy as np
    import torch
    import webdataset as wds
    from PIL import Image

    torch.set_num_threads(1)
    pattern = "large-*.tar" if workload.startswith("W3") else "train-*.tar"
    shards = sorted(str(p) for p in (data.FOLDER / "tar").glob(pattern))
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    def made(sample: Any) -> Any:
        image = Image.open(io.BytesIO(sample["jpg"])).convert("RGB")
        if workload == "W2":
            h, w = shorter_256(image.height, image.width)
            left, top = (w - 224) // 2, (h - 224) // 2
            image = image.resize((w, h), Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
        else:
            top, left, h, w = random_box(image.height, image.width)
            image = image.crop((left, top, left + w, top + h)).resize((224, 224), Image.Resampling.BILINEAR)
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image
        pixels = torch.from_numpy(np.asarray(image).copy())
        if workload != "W1u8":
            pixels = pixels.permute(2, 0, 1).float().div_(255).sub_(mean).div_(std)
        return pixels, int(sample["cls"])

    read = wds.WebDataset(shards, shardshuffle=100, workersplitter=wds.split_by_worker, empty_check=False)
    dataset = read.shuffle(500).map(made)
    loader = torch.utils.data.DataLoader(dataset.batched(BATCH[workload], partial=False), batch_size=None, num_workers=threads,
                                         persistent_workers=True)
    return lambda _: loader


# --- others ---------------------------------------------------------------------------------------------------------------


def dali(workload: str, threads: int) -> Epochs:
    from nvidia.dali import fn, pipeline_def, types

    listed = files(workload)

    @pipeline_def
    def pipeline() -> Any:
        encoded, labels = fn.readers.file(files=listed, labels=[label(f) for f in listed], name="r",
                                          random_shuffle=workload != "W2")
        flip: Any = 0
        if workload == "W2":
            image = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
            image = fn.resize(image, resize_shorter=256, interp_type=types.INTERP_LINEAR, antialias=True)
        else:
            image = fn.decoders.image_random_crop(encoded, device="cpu", output_type=types.RGB, num_attempts=10,
                                                  random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0])
            image = fn.resize(image, resize_x=224, resize_y=224, interp_type=types.INTERP_LINEAR, antialias=True)
            flip = fn.random.coin_flip(probability=0.5)
        if workload == "W1u8":
            return fn.flip(image, horizontal=flip), labels
        return fn.crop_mirror_normalize(image, dtype=types.FLOAT, output_layout="CHW", crop=(224, 224), mirror=flip,
                                        mean=[m * 255 for m in MEAN], std=[s * 255 for s in STD]), labels

    made = pipeline(batch_size=BATCH[workload], num_threads=threads, device_id=None, seed=1)
    made.build()

    def epoch(_: int) -> Iterable[Any]:
        for _ in range(len(listed) // BATCH[workload]):
            images, labels = made.run()
            yield images.as_array(), labels   # a copy: DALI uses its buffer again

    return epoch


def spdl(workload: str, threads: int) -> Epochs:
    import cv2
    import numpy as np
    import simplejpeg
    import torch
    from spdl.pipeline import PipelineBuilder

    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    listed = files(workload)
    mean, scale = (torch.tensor(MEAN) * 255).view(1, 3, 1, 1), 1 / (torch.tensor(STD) * 255).view(1, 3, 1, 1)

    def load(path: str) -> Any:
        image = simplejpeg.decode_jpeg(Path(path).read_bytes(), "RGB")
        if workload == "W2":
            h, w = shorter_256(*image.shape[:2])
            image = cv2.resize(image, (w, h), interpolation=cv2.INTER_LINEAR)
            top, left = (h - 224) // 2, (w - 224) // 2
            return image[top : top + 224, left : left + 224]
        top, left, h, w = random_box(*image.shape[:2])
        image = cv2.resize(image[top : top + h, left : left + w], (224, 224), interpolation=cv2.INTER_LINEAR)
        return cv2.flip(image, 1) if random.random() < 0.5 else image

    def collate(images: Any) -> Any:
        batch = torch.from_numpy(np.stack(images))
        if workload == "W1u8":
            return (batch,)
        planes = batch.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        return (planes.sub_(mean).mul_(scale),)

    class Paths:
        def __iter__(self) -> Any:
            order = list(listed)
            while True:
                if workload != "W2":
                    random.shuffle(order)
                yield from order

    built = PipelineBuilder().add_source(Paths()).pipe(load, concurrency=threads).aggregate(BATCH[workload], drop_last=True)
    pipeline = built.pipe(collate).add_sink(3).build(num_threads=threads)
    started: list[Any] = []

    def epoch(_: int) -> Iterable[Any]:
        if not started:
            pipeline.start()
            started.append(pipeline.get_iterator())
        for _ in range(len(listed) // BATCH[workload]):
            yield next(started[0])

    return epoch


def ffcv(workload: str, threads: int) -> Epochs:
    import numpy as np
    import torch
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter
    from PIL import Image

    torch.set_num_threads(1)
    listed = files(workload)
    path = data.FOLDER / f"{'large' if workload.startswith('W3') else 'jpeg'}.beton"
    if not path.exists():
        class Photos:
            def __len__(self) -> int:
                return len(listed)

            def __getitem__(self, i: int) -> Any:
                return Image.open(listed[i]).convert("RGB"), label(listed[i])

        field = RGBImageField(write_mode="jpg", jpeg_quality=90)
        DatasetWriter(str(path), {"image": field, "label": IntField()}, num_workers=threads).from_indexed_dataset(Photos())
    steps: list[Any] = [CenterCropRGBImageDecoder((224, 224), 224 / 256)] if workload == "W2" else [
        RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip()]
    normal = NormalizeImage(np.array(MEAN) * 255, np.array(STD) * 255, np.float32)
    steps += [ToTensor()] if workload == "W1u8" else [normal, ToTensor(), ToTorchImage(channels_last=False)]
    order = OrderOption.SEQUENTIAL if workload == "W2" else OrderOption.RANDOM
    loader = Loader(str(path), batch_size=BATCH[workload], num_workers=threads, order=order, os_cache=True, drop_last=True,
                    pipelines={"image": steps, "label": [IntDecoder(), ToTensor()]})
    return lambda _: loader


def tf_photos(workload: str, threads: int) -> Any:
    """A tf.data pipeline of batches."""
    from .tf_peers import tensorflow

    tf = tensorflow(threads)
    mean, std = tf.constant(MEAN) * 255, tf.constant(STD) * 255
    listed = files(workload)

    def made(path: Any, number: Any) -> Any:
        encoded = tf.io.read_file(path)
        shape = tf.io.extract_jpeg_shape(encoded)
        if workload == "W2":
            h, w = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
            ratio = 256.0 / tf.minimum(h, w)
            tall, wide = tf.cast(h * ratio, tf.int32), tf.cast(w * ratio, tf.int32)
            image = tf.image.resize(tf.cast(tf.io.decode_jpeg(encoded, 3), tf.float32), [tall, wide], antialias=True)
            top, left = (tall - 224) // 2, (wide - 224) // 2
            image = image[top : top + 224, left : left + 224]
        else:
            begin, size, _ = tf.image.sample_distorted_bounding_box(
                shape, bounding_boxes=tf.zeros([1, 0, 4]), min_object_covered=0.0, area_range=(0.08, 1.0),
                aspect_ratio_range=(3 / 4, 4 / 3), max_attempts=10, use_image_if_no_bounding_boxes=True)
            image = tf.image.decode_and_crop_jpeg(encoded, tf.stack([begin[0], begin[1], size[0], size[1]]), channels=3)
            image = tf.image.random_flip_left_right(tf.image.resize(image, [224, 224], antialias=True))
        image = tf.ensure_shape(image, [224, 224, 3])
        if workload == "W1u8":
            return tf.cast(tf.round(image), tf.uint8), number
        return tf.transpose((image - mean) / std, [2, 0, 1]), number

    options = tf.data.Options()
    options.threading.private_threadpool_size, options.deterministic = threads, False
    source = tf.data.Dataset.from_tensor_slices((listed, [label(f) for f in listed])).shuffle(len(listed))
    ready = source.map(made, num_parallel_calls=threads, deterministic=False).batch(BATCH[workload], drop_remainder=True)
    return ready.prefetch(tf.data.AUTOTUNE).with_options(options)


def tf_data(workload: str, threads: int) -> Epochs:
    ready = tf_photos(workload, threads)
    return lambda _: ready.as_numpy_iterator()


def grain(workload: str, threads: int) -> Epochs:
    import cv2
    import grain as grains
    import numpy as np

    listed = files(workload)
    mean, scale = np.float32(MEAN) * 255, 1 / (np.float32(STD) * 255)

    class Paths:
        def __len__(self) -> int:
            return len(listed)

        def __getitem__(self, i: int) -> str:
            return listed[i]

    def made(path: str, rng: Any) -> Any:
        cv2.setNumThreads(0)
        random.seed(int(rng.integers(1 << 62)))
        image = cv2.cvtColor(cv2.imread(path, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        if workload == "W2":
            h, w = shorter_256(*image.shape[:2])
            image = cv2.resize(image, (w, h), interpolation=cv2.INTER_LINEAR)
            image = image[(h - 224) // 2 : (h - 224) // 2 + 224, (w - 224) // 2 : (w - 224) // 2 + 224]
        else:
            top, left, h, w = random_box(*image.shape[:2])
            image = cv2.resize(image[top : top + h, left : left + w], (224, 224), interpolation=cv2.INTER_LINEAR)
            image = cv2.flip(image, 1) if random.random() < 0.5 else image
        if workload == "W1u8":
            return np.ascontiguousarray(image)
        return ((image.astype(np.float32) - mean) * scale).transpose(2, 0, 1)

    listing = grains.MapDataset.source(Paths()).seed(1)
    listing = (listing if workload == "W2" else listing.shuffle()).repeat().random_map(made).batch(BATCH[workload])
    ready = listing.to_iter_dataset(grains.ReadOptions(num_threads=2, prefetch_buffer_size=8))
    iterator = iter(ready.mp_prefetch(grains.MultiprocessingOptions(num_workers=threads, per_worker_buffer_size=2)))

    def epoch(_: int) -> Iterable[Any]:
        for _ in range(len(listed) // BATCH[workload]):
            yield (next(iterator),)

    return epoch


PEERS: dict[str, Callable[[str, int], Epochs]] = {
    "pillow": pillow, "opencv": opencv, "albumentations": albumentations, "torchvision": torchvision, "webdataset": webdataset,
    "dali": dali, "spdl": spdl, "ffcv": ffcv, "tf.data": tf_data, "grain": grain,
}
