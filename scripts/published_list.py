"""The published training scripts that `published_scripts.py` runs, with their arguments and what they print."""

from __future__ import annotations

from typing import NamedTuple

LOSS = r"[Ll]oss:? +([-+.\de]+|nan)"
DRAWS = "crops are drawn in workers, where random numbers are Stoker's"
FOLDER = "torchvision.datasets.folder:DatasetFolder.__getitem__"
TIMM = "timm.data.dataset:ImageDataset.__getitem__"
DATASETS = "datasets.arrow_dataset:Dataset.__getitems__"


class Script(NamedTuple):
    """A script, and how it is run.

    Attributes:
        title: as on the page.
        repository: the folder of the checkout, below the one that is given.
        file: in it.
        arguments: `{data}` is the folder of made data, `{out}` one for results. Words are split at spaces.
        printed: a pattern of the numbers that both engines are to print alike.
        unequal: why they may differ, or empty.
        seeded: torch is seeded from outside, since the script has no such argument.
        fetch: the method by which the dataset makes samples in the main process, whose CPU time is taken.
        launcher: `-m MODULE ARGUMENTS` before the script, as `stoker run` takes them.
        environment: of the run.
        outside: why it fails under torch's loader as well.
        again: arguments of a second run in the same place, after the first; it saves in `{out}/again`.
        saved: a pattern of files below `{out}` that both engines are to write alike.
    """

    title: str
    repository: str
    file: str
    arguments: str
    printed: str = LOSS
    unequal: str = ""
    seeded: bool = False
    fetch: str = ""
    launcher: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    outside: str = ""
    again: str = ""
    saved: str = ""


IMAGENET = "--seed 0 --no-accel -a shufflenet_v2_x0_5 -b 16 --lr 0.01 -p 1 --epochs 1 {data}/photos"
TIMM_ARGUMENTS = (
    "--data-dir {data}/photos --model test_resnet --img-size 224 --num-classes 16 --device cpu -b 16 --epochs 1 "
    "--log-interval 1 --warmup-epochs 0 --cooldown-epochs 0 --output {out}"
)
VIT = (
    "--model_name_or_path {data}/models/vit --train_dir {data}/photos/train --validation_dir {data}/photos/val "
    "--image_column_name image --label_column_name label --output_dir {out} --seed 0 --ignore_mismatched_sizes "
)
TRAINER = "--remove_unused_columns False --do_train --do_eval --num_train_epochs 1 --logging_steps 1 --report_to none "
PRINTED_BY_TRAINER = r"'(?:eval_)?loss': '?([-\d.e]+)"
HUB = (("HF_HOME", "{data}/hub"), ("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_CACHE", "{out}/cache"))
MNIST_SMALL = "--epochs 1 --no-accel"
SCORES = r"epoch \d+: \{'accuracy': ([\d.]+), 'f1': ([\d.]+)\}"
RANKS = (
    "-m accelerate.commands.launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
)
CONTINUED = "--cpu --output_dir {out} --checkpointing_steps 25"

NOT_FOR_CPU = {
    "PyTorch's examples: distributed/ddp-tutorial-series, multigpu_torchrun.py and others": "they ask for CUDA",
    "PyTorch's examples: distributed/minGPT-ddp": "it ends at once without two accelerators",
    "PyTorch's examples: distributed/ddp, FSDP2, tensor_parallelism": "they ask for accelerators, and make no loader",
    "PyTorch's examples: gat, gcn, reinforcement_learning, regression, time_sequence_prediction": "they make no loader",
}
"""Published scripts that do not run on a CPU or have no loader, and why."""

SCRIPTS = {
    "imagenet": Script("ImageNet, no worker", "examples", "imagenet/main.py", f"-j 0 {IMAGENET}", fetch=FOLDER),
    "imagenet-workers": Script(
        "ImageNet, 2 workers", "examples", "imagenet/main.py", f"-j 2 {IMAGENET}", unequal=DRAWS, fetch=FOLDER
    ),
    "imagenet-evaluate": Script(
        "ImageNet, `--evaluate`, 2 workers", "examples", "imagenet/main.py", f"-j 2 --evaluate {IMAGENET}"
    ),
    "imagenet-torchrun": Script(
        "ImageNet by torchrun, 2 ranks",
        "examples",
        "imagenet/main.py",
        f"-j 0 --dist-url env:// --dist-backend gloo {IMAGENET}",
        launcher="-m torch.distributed.run --nproc-per-node 2",
    ),
    "mnist": Script("MNIST", "examples", "mnist/main.py", MNIST_SMALL),
    "mnist-rnn": Script("MNIST, recurrent", "examples", "mnist_rnn/main.py", "--epochs 1"),
    "mnist-hogwild": Script(
        "MNIST, Hogwild: two spawned processes",
        "examples",
        "mnist_hogwild/main.py",
        "--epochs 1",
        unequal="two processes write the same weights without a lock",
    ),
    "vae": Script("VAE", "examples", "vae/main.py", MNIST_SMALL, r"loss: ([\d.]+)"),
    "siamese": Script("Siamese network", "examples", "siamese_network/main.py", MNIST_SMALL, seeded=True),
    "dcgan": Script(
        "DCGAN on photographs, 2 workers",
        "examples",
        "dcgan/main.py",
        "--dataset folder --dataroot {data}/photos/train --workers 2 --niter 1 --batchSize 16 --ngf 8 --ndf 8 "
        "--manualSeed 1 --outf {out}",
        r"Loss_D: ([-\d.]+) Loss_G: ([-\d.]+)",
    ),
    "super-resolution": Script(
        "super resolution on photographs, 4 workers",
        "examples",
        "super_resolution/main.py",
        "--upscale_factor 4 --batchSize 16 --nEpochs 1",
        r"(?:Loss|PSNR): ([\d.]+)",
    ),
    "forward-forward": Script(
        "MNIST, forward-forward",
        "examples",
        "mnist_forward_forward/main.py",
        "--epochs 10 --no_accel --log-interval 5 --train_size 3000 --test_size 1000",
        r"(?:Loss|error):  ?([-\d.]+)",
        seeded=True,
    ),
    "words": Script(
        "word language model",
        "examples",
        "word_language_model/main.py",
        "--data {data}/wikitext-2 --epochs 1 --emsize 32 --nhid 32 --log-interval 20",
        r"loss +([-\d.]+)",
    ),
    "timm": Script(
        "timm `train.py`, `--no-aug`, 2 workers",
        "pytorch-image-models",
        "train.py",
        f"--workers 2 --no-aug {TIMM_ARGUMENTS}",
        fetch=TIMM,
    ),
    "timm-workers": Script(
        "timm `train.py`, 2 workers",
        "pytorch-image-models",
        "train.py",
        f"--workers 2 {TIMM_ARGUMENTS}",
        unequal=DRAWS,
        fetch=TIMM,
    ),
    "timm-no-worker": Script(
        "timm `train.py`, `--workers 0`",
        "pytorch-image-models",
        "train.py",
        f"--workers 0 {TIMM_ARGUMENTS}",
        outside="timm asks torch for persistent workers without a worker",
    ),
    "torchvision": Script(
        "references/classification, no worker",
        "vision",
        "references/classification/train.py",
        "--data-path {data}/photos --model shufflenet_v2_x0_5 --device cpu -b 16 -j 0 --epochs 1 --lr 0.01 "
        "--print-freq 1",
        r"loss: ([\d.]+)",
        seeded=True,
        fetch=FOLDER,
    ),
    "lightning-imagenet": Script(
        "imagenet.py, no worker",
        "pytorch-lightning",
        "examples/pytorch/domain_templates/imagenet.py",
        "fit --model.data_path {data}/photos --model.arch shufflenet_v2_x0_5 --model.workers 0 --model.batch_size 16 "
        "--trainer.max_epochs 1 --trainer.accelerator cpu --trainer.default_root_dir {out} --model.lr 0.01",
        r"_acc[15]=([\d.]+)",
        fetch=FOLDER,
    ),
    "fabric": Script(
        "Fabric, image_classifier",
        "pytorch-lightning",
        "examples/fabric/image_classifier/train_fabric.py",
        "--epochs 1 --batch-size 64",
    ),
    "accelerate": Script(
        "cv_example.py, 4 workers",
        "accelerate",
        "examples/cv_example.py",
        "--data_dir {data}/pets --cpu",
        r"epoch \d+: ([\d.]+)",
        unequal=DRAWS,
        environment=HUB,
    ),
    "accelerate-launch": Script(
        "cv_example.py by `accelerate launch`, 2 ranks",
        "accelerate",
        "examples/cv_example.py",
        "--data_dir {data}/pets --cpu",
        r"epoch \d+: ([\d.]+)",
        unequal=DRAWS,
        launcher=RANKS,
        environment=HUB,
    ),
    "accelerate-complete": Script(
        "complete_cv_example.py, 4 workers, continued at step 2",
        "accelerate",
        "examples/complete_cv_example.py",
        "--data_dir {data}/pets --cpu --output_dir {out} --checkpointing_steps 2",
        r"epoch \d+: ([\d.]+)",
        unequal=DRAWS,
        environment=HUB,
        again="--data_dir {data}/pets --cpu --output_dir {out} --resume_from_checkpoint {out}/step_2",
    ),
    "accelerate-nlp": Script(
        "nlp_example.py", "accelerate", "examples/nlp_example.py", "--cpu", SCORES, environment=HUB
    ),
    "accelerate-nlp-launch": Script(
        "nlp_example.py by `accelerate launch`, 2 ranks",
        "accelerate",
        "examples/nlp_example.py",
        "--cpu",
        SCORES,
        launcher=RANKS,
        environment=HUB,
    ),
    "accelerate-checkpointing": Script(
        "by_feature/checkpointing.py, continued at step 25",
        "accelerate",
        "examples/by_feature/checkpointing.py",
        CONTINUED,
        SCORES,
        environment=HUB,
        again="--cpu --output_dir {out}/again --checkpointing_steps 25 --resume_from_checkpoint {out}/step_25",
        saved="**/model.safetensors",
    ),
    "accelerate-stateful": Script(
        "by_feature/checkpointing.py, `--use_stateful_dataloader`, continued at step 25",
        "accelerate",
        "examples/by_feature/checkpointing.py",
        CONTINUED + " --use_stateful_dataloader",
        SCORES,
        environment=HUB,
        again="--cpu --output_dir {out}/again --checkpointing_steps 25 --resume_from_checkpoint {out}/step_25 "
        "--use_stateful_dataloader",
        saved="**/model.safetensors",
    ),
    "accelerate-accumulation": Script(
        "by_feature/gradient_accumulation.py",
        "accelerate",
        "examples/by_feature/gradient_accumulation.py",
        "--cpu --gradient_accumulation_steps 2",
        SCORES,
        environment=HUB,
    ),
    "accelerate-folds": Script(
        "by_feature/cross_validation.py",
        "accelerate",
        "examples/by_feature/cross_validation.py",
        "--cpu --num_folds 2",
        SCORES,
        environment=HUB,
    ),
    "accelerate-metrics": Script(
        "by_feature/multi_process_metrics.py by `accelerate launch`, 2 ranks",
        "accelerate",
        "examples/by_feature/multi_process_metrics.py",
        "--cpu",
        SCORES,
        launcher=RANKS,
        environment=HUB,
    ),
    "accelerate-sgd": Script(
        "by_feature/local_sgd.py by `accelerate launch`, 2 ranks",
        "accelerate",
        "examples/by_feature/local_sgd.py",
        "--cpu",
        SCORES,
        launcher=RANKS,
        environment=HUB,
    ),
    "transformers": Script(
        "run_image_classification.py (`Trainer`), no worker",
        "transformers",
        "examples/pytorch/image-classification/run_image_classification.py",
        VIT + TRAINER + "--per_device_train_batch_size 16",
        PRINTED_BY_TRAINER,
        fetch=DATASETS,
        environment=HUB,
    ),
    "transformers-workers": Script(
        "run_image_classification.py (`Trainer`), 2 workers",
        "transformers",
        "examples/pytorch/image-classification/run_image_classification.py",
        VIT + TRAINER + "--per_device_train_batch_size 16 --dataloader_num_workers 2",
        PRINTED_BY_TRAINER,
        unequal=DRAWS,
        environment=HUB,
    ),
    "transformers-no-trainer": Script(
        "run_image_classification_no_trainer.py (Accelerate)",
        "transformers",
        "examples/pytorch/image-classification/run_image_classification_no_trainer.py",
        VIT + "--dataset_name {data}/photos --num_train_epochs 1 --per_device_train_batch_size 16 "
        "--checkpointing_steps epoch",
        r"accuracy'?: ([\d.]+)",
        fetch=DATASETS,
        environment=HUB,
    ),
    "fastai": Script(
        "train_imagenette.py, no worker",
        "fastai",
        "nbs/examples/train_imagenette.py",
        "--workers 0 --epochs 1 --bs 16 --size 64 --arch xresnet18",
        r"\n\s*\d+ +([\d.]+) +([\d.]+) +([\d.]+)",
        seeded=True,
        environment=(("FASTAI_HOME", "{data}/fastai"),),
        outside="today's fastcore does not read its `Param(...)` annotations",
    ),
    "fastai-workers": Script(
        "train_imagenette.py, 2 workers",
        "fastai",
        "nbs/examples/train_imagenette.py",
        "--workers 2 --epochs 1 --bs 16 --size 64 --arch xresnet18",
        r"\n\s*\d+ +([\d.]+) +([\d.]+) +([\d.]+)",
        unequal=DRAWS,
        seeded=True,
        environment=(("FASTAI_HOME", "{data}/fastai"),),
        outside="today's fastcore does not read its `Param(...)` annotations",
    ),
    "geometric": Script(
        "mutag_gin.py",
        "pytorch_geometric",
        "examples/mutag_gin.py",
        "--epochs 5",
        r"(?:Loss|Train|Test): ([\d.]+)",
        seeded=True,
    ),
}
