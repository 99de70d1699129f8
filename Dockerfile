# syntax=docker/dockerfile:1
# docker build --build-arg BUILD=cpu|gpu .   (the build of torch; gpu also installs FlashInfer)
FROM python:3.11.13-slim-bookworm AS build
ARG BUILD=cpu
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
COPY requirements.lock /src/
RUN pip install --require-hashes --no-deps -r /src/requirements.lock
COPY pyproject.toml README.md LICENSE /src/
COPY controller /src/controller
COPY engine /src/engine
COPY app /src/app
COPY ui /src/ui
COPY migrations /src/migrations
RUN pip install --no-deps --no-build-isolation /src \
    && if [ "$BUILD" = gpu ]; then pip install 'flashinfer-python>=0.6.4'; fi

FROM python:3.11.13-slim-bookworm AS run
# FlashInfer compiles its kernels with the host's compiler at first use.
ARG BUILD=cpu
# hadolint ignore=DL3008
RUN if [ "$BUILD" = gpu ]; then \
      apt-get update \
      && apt-get install -y --no-install-recommends g++ ninja-build \
      && rm -rf /var/lib/apt/lists/*; \
    fi
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
