# The command `nmt`. PyPI's torch brings its own CUDA libraries, so a GPU needs no other base image:
#   docker build -t nmt .
#   docker build -t nmt --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .   # for CPUs alone: far smaller
#   docker run --rm --init -v "$PWD:/workspace" -v nmt-cache:/cache nmt prepare multi30k-en-de
#   docker run --rm --init --gpus all --ipc=host -v "$PWD:/workspace" --entrypoint torchrun nmt \
#     --standalone --nproc-per-node=8 -m nmt_cli train big
#   docker run --rm --init -p 127.0.0.1:8000:8000 -v "$PWD/runs/base/averaged:/model:ro" nmt serve -m /model --host 0.0.0.0
# The volume nmt-cache keeps what is downloaded from a hub. The mounted folder must be writable for user 10001, or give
# --user "$(id -u):$(id -g)".

FROM python:3.12-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /source
COPY constraints.txt ./
ARG TORCH_INDEX
# torch is most of the download: a layer of its own, kept when anything else changes. The build tool stays out of /opt/nmt.
RUN pip install -c constraints.txt hatchling \
    && python -m venv /opt/nmt \
    && /opt/nmt/bin/pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml ./
# The extras are what `nmt serve` and its quick engine need.
RUN python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; more = p["optional-dependencies"]; \
print(*p["dependencies"], *more["serve"], *more["export"], sep="\n")' \
    > requirements.txt \
    && /opt/nmt/bin/pip install -c constraints.txt -r requirements.txt
COPY README.md LICENSE ./
COPY recipes recipes
COPY src src
RUN python -m hatchling build -t wheel -d dist && /opt/nmt/bin/pip install --no-deps dist/*.whl

FROM python:3.12-slim-bookworm
# On a GPU, Triton needs a C compiler, and a folder to write that exists for any --user.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 nmt \
    && useradd --uid 10001 --gid 10001 --create-home nmt \
    && install --directory --owner 10001 --group 10001 --mode 0777 /workspace /cache /cache/huggingface /cache/nmt /cache/triton /cache/inductor
COPY --from=build /opt/nmt /opt/nmt
ENV PATH=/opt/nmt/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/cache/huggingface \
    NMT_CACHE=/cache/nmt \
    TRITON_CACHE_DIR=/cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor
VOLUME ["/cache"]
WORKDIR /workspace
USER 10001:10001
EXPOSE 8000
# Most commands are not servers, so this check only starts the command. deploy/compose.yaml checks a running server.
HEALTHCHECK --interval=60s --timeout=10s --start-period=10s CMD ["nmt", "--version"]
ENTRYPOINT ["nmt"]
CMD ["--help"]
