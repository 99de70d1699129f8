# syntax=docker/dockerfile:1
# docker build --build-arg BUILD=cpu|gpu .   (the build of torch; gpu also installs FlashInfer and
# what compiles its kernels)
ARG BUILD=cpu

FROM python:3.11.13-slim-bookworm AS build
ARG BUILD
ARG TORCH=2.13.0
ARG TORCH_CPU_INDEX=
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH
# torch first and by itself: its build differs by machine, so it is not in the lock file.
# On cpu, TORCH_CPU_INDEX may name an index that has builds without CUDA, which are far smaller.
RUN if [ "$BUILD" = cpu ] && [ -n "$TORCH_CPU_INDEX" ]; then \
      pip install --index-url "$TORCH_CPU_INDEX" "torch==$TORCH"; \
    else \
      pip install "torch==$TORCH"; \
    fi
# FlashInfer compiles its kernels at the first start: NVIDIA's compiler and headers of the CUDA that
# torch was built with, beside the libraries that torch brought. nvvm and crt are named because nvcc
# takes any version of them, and fails with a newer one. The links are the names that FlashInfer
# links with; the driver, libcuda, comes from the host.
RUN if [ "$BUILD" = gpu ]; then \
      cuda="$(python -c 'import torch; print(torch.version.cuda)')" \
      && pip install "torch==$TORCH" "cuda-toolkit[nvcc,nvvm,crt,cccl,cudart,curand]==$cuda.*" \
      && home="$(python -c 'import nvidia; print(nvidia.__path__[0])')/cu${cuda%%.*}" \
      && "$home/bin/nvcc" --version \
      && ln -s "$home" /opt/paceline/cuda \
      && ln -s lib "$home/lib64" \
      && ln -s "libcudart.so.${cuda%%.*}" "$home/lib/libcudart.so" \
      && mkdir "$home/lib/stubs" \
      && ln -s "/usr/lib/$(uname -m)-linux-gnu/libcuda.so.1" "$home/lib/stubs/libcuda.so"; \
    fi
COPY requirements.lock /src/
RUN pip install --require-hashes --no-deps -r /src/requirements.lock
COPY pyproject.toml README.md LICENSE /src/
COPY controller /src/controller
COPY engine /src/engine
COPY app /src/app
COPY ui /src/ui
COPY migrations /src/migrations
RUN pip install --no-deps --no-build-isolation /src \
    && if [ "$BUILD" = gpu ]; then pip install 'flashinfer-python>=0.6.4,<0.8'; fi

FROM python:3.11.13-slim-bookworm AS run-cpu

FROM run-cpu AS run-gpu
# nvcc needs a C++ compiler for the host's part of a kernel; FlashInfer runs both through ninja.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ ninja-build \
    && rm -rf /var/lib/apt/lists/*
ENV CUDA_HOME=/opt/paceline/cuda

# hadolint ignore=DL3006
FROM run-${BUILD} AS run
RUN useradd --uid 10001 --create-home --home-dir /var/lib/paceline paceline \
    && install -d -o paceline -g paceline /var/lib/paceline/data /var/lib/paceline/cache
COPY --from=build /opt/paceline /opt/paceline
ENV PATH=/opt/paceline/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PACELINE_HOST=0.0.0.0 \
    PACELINE_DATA_DIR=/var/lib/paceline/data \
    PACELINE_CACHE_DIR=/var/lib/paceline/cache \
    HF_HOME=/var/lib/paceline/cache/huggingface \
    FLASHINFER_WORKSPACE_BASE=/var/lib/paceline/cache
USER 10001
WORKDIR /var/lib/paceline
EXPOSE 8000 8501
STOPSIGNAL SIGTERM
ENTRYPOINT ["paceline"]
CMD ["serve"]
