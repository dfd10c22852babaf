# The service and the planner, without the demo: small, not root, kernels compiled while the image is
# built.  docs/start/quickstart.md, "Image", has more; `scripts/build_image` builds and tries it without
# a Docker daemon.
#
#   docker build -t select-service .
#   docker run --rm --network host select-service --log-format json
#   docker run --rm --network host --entrypoint select-planner select-service --config …
#
# It binds 127.0.0.1.  Behind `-p 8092:8092`, or in a cluster, give it `--host 0.0.0.0` and a file of keys
# (`--api-keys-file`), or `--insecure` on a network that you trust: see docs/guides/security.md.
#
# Settings are flags after the image name or SELECT_SERVICE_* and DYN_* variables.  Change the port with
# SELECT_SERVICE_PORT rather than --port, and switch TLS on with SELECT_SERVICE_TLS_CERT and
# SELECT_SERVICE_TLS_KEY rather than their flags: the health check reads the variables.
#
# Build arguments:
#   BASE      any image with Python 3.11 to 3.14 and its venv.  Pin it: python:3.11-slim@sha256:…, with what
#             `docker buildx imagetools inspect python:3.11-slim` calls its digest
#   CPU       the processor for which kernels are compiled, as LLVM calls it.  generic: every machine of the
#             architecture; x86-64-v3: every x86-64 of the last ten years, with AVX2; or a model, as znver4
#   VERSION, REVISION, CREATED, SOURCE   for the labels
#   PIP_INDEX_URL, PIP_NO_INDEX, PIP_FIND_LINKS   where packages come from; hashes are checked in any case
#
# Several architectures: one build each, on a machine of its own or under emulation, and then one name for both.
#
#   docker buildx build --platform linux/amd64 --build-arg CPU=x86-64-v3 -t REPOSITORY:amd64 --push .
#   docker buildx build --platform linux/arm64 --build-arg CPU=generic   -t REPOSITORY:arm64 --push .
#   docker buildx imagetools create -t REPOSITORY:VERSION REPOSITORY:amd64 REPOSITORY:arm64

ARG BASE=python:3.11-slim


FROM ${BASE} AS build

ARG PIP_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src

COPY requirements/image.lock requirements/
RUN pip install --require-hashes -r requirements/image.lock

COPY pyproject.toml README.md LICENSE ./
COPY indexer indexer
COPY select_service select_service
# The build backend comes from the lock file; neither it nor pip is needed to run the service.
RUN pip install --no-deps --no-build-isolation --no-index . \
    && pip uninstall --yes setuptools pip

# Machine code is cached per processor model.  With a name for it the cache fits every machine that
# has what the name stands for; features of the machine that builds are left out.
ARG CPU=generic
ENV NUMBA_CPU_NAME=${CPU} NUMBA_CPU_FEATURES=
RUN select-service compile --cache /var/cache/select-service


FROM ${BASE}

COPY --from=build /opt/venv /opt/venv
# Complete, so it is only read: any user id and a read-only file system will do.
COPY --from=build /var/cache/select-service /var/cache/select-service

ARG CPU=generic
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CPU_NAME=${CPU} \
    NUMBA_CPU_FEATURES= \
    NUMBA_CACHE_DIR=/var/cache/select-service \
    SELECT_SERVICE_PORT=8092

ARG BASE
ARG VERSION=
ARG REVISION=
ARG CREATED=
ARG SOURCE=
LABEL org.opencontainers.image.title="select-service" \
      org.opencontainers.image.description="KV-cache-aware worker selection and load accounting for LLM inference fleets" \
      org.opencontainers.image.licenses="Apache-2.0 AND MIT" \
      org.opencontainers.image.base.name="${BASE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}" \
      select-service.cpu="${CPU}"

USER 10001:10001
WORKDIR /tmp
EXPOSE 8092 8095 9092

HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-m", "select_service.cli.healthcheck"]

ENTRYPOINT ["select-service"]
