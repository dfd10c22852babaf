# The service alone, without the demo: small, not root, kernels compiled while the image is built.
#
#   docker build -t select-service .
#   docker run --rm --network host select-service --log-format json
#
# It binds 127.0.0.1.  Behind `-p 8092:8092`, or in a cluster, give it `--host 0.0.0.0` and a file of keys
# (`--api-keys-file`), or `--insecure` on a network that you trust: see docs/security.md.
#
# Settings are flags after the image name or SELECT_SERVICE_* and DYN_* variables.  Change the port with
# SELECT_SERVICE_PORT rather than --port: the health check reads the variable.

FROM python:3.11-slim AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src

COPY requirements.lock ./
RUN pip install --require-hashes -r requirements.lock

COPY pyproject.toml README.md LICENSE ./
COPY indexer indexer
COPY select_service select_service
# The build backend comes from the lock file; neither it nor pip is needed to run the service.
RUN pip install --no-deps --no-build-isolation --no-index . \
    && pip uninstall --yes setuptools pip

# Machine code is cached per processor model.  `generic` makes the cache fit every x86-64 (or every
# arm64) machine that may run the image, for a few percent of speed: see docs/demo.md, "The image".
ENV NUMBA_CPU_NAME=generic
RUN select-service compile --cache /var/cache/select-service


FROM python:3.11-slim

COPY --from=build /opt/venv /opt/venv
# Complete, so it is only read: any user id and a read-only file system will do.
COPY --from=build /var/cache/select-service /var/cache/select-service

ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NUMBA_CPU_NAME=generic \
    NUMBA_CACHE_DIR=/var/cache/select-service \
    SELECT_SERVICE_PORT=8092

USER 10001:0
WORKDIR /tmp
EXPOSE 8092

HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['SELECT_SERVICE_PORT']), timeout=2); c.request('GET', '/health'); sys.exit(c.getresponse().status != 200)"]

ENTRYPOINT ["select-service"]
