# Targets: cpu (the last, so the default), cuda, native (a CPU without PyTorch), tools (makes and
# measures models; not for serving). docs/deploy.md says how they are used and how they are tested.
#
#   docker build -t narsil .                      docker build --target cuda -t narsil:cuda .

# Any image with Python 3.11 or newer as python3, with its module venv.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/narsil
ENV PATH=/opt/narsil/bin:$PATH
WORKDIR /build
COPY deploy/requirements.py pyproject.toml ./

# One layer of dependencies for each target, kept until pyproject.toml changes.
FROM build AS dependencies-native
RUN python3 requirements.py native onnx > requirements.txt \
 && python3 -m pip install -q -r requirements.txt

FROM build AS dependencies-cpu
# The public index has a CUDA build of PyTorch, of several GB, for CPUs too: name one with CPU wheels.
ARG PIP_EXTRA_INDEX_URL=
RUN python3 requirements.py cpu onnx > requirements.txt \
 && python3 -m pip install -q -r requirements.txt \
 # Headers and tests: nothing here compiles.
 && rm -rf /opt/narsil/lib/python3*/site-packages/torch/include \
           /opt/narsil/lib/python3*/site-packages/torch/test

FROM build AS dependencies-cuda
# Left out, of 8.1 GB: FBGEMM's kernels for training (2.2 GB; of the libraries in front of them in its
# list, one that they brought along is named instead), Triton, whose launcher wants a compiler (0.7 GB),
# headers, tests, profilers and what nothing here is linked to.
RUN python3 requirements.py cuda > requirements.txt \
 && python3 -m pip install -q -r requirements.txt \
 && python3 -m pip uninstall -q -y triton \
 && cd /opt/narsil/lib/python3*/site-packages \
 && sed -i -e 's/"fbgemm_gpu_tbe_training_forward"/"fbgemm_gpu_tbe_common"/' \
           -e '/"fbgemm_gpu_tbe_training_/d' fbgemm_gpu/__init__.py \
 && grep -q '"fbgemm_gpu_tbe_common"' fbgemm_gpu/__init__.py \
 && rm fbgemm_gpu/fbgemm_gpu_tbe_training_*.so \
 && rm -rf torch/include torch/test nvidia/*/include nvidia/cu13/lib/*.a \
           nvidia/cu13/lib/libnvrtc*.alt.so* nvidia/cu13/lib/libcusolverMg.so* \
           nvidia/cu13/lib/libnvperf_*.so*

FROM dependencies-cpu AS dependencies-tools
ARG PIP_EXTRA_INDEX_URL=
# torchrec depends on FBGEMM's CUDA build by name: so without what it depends on.
RUN python3 requirements.py cpu onnx export bench > requirements.txt \
 && python3 -m pip install -q -r requirements.txt \
 && python3 -m pip install -q --no-deps torchrec==1.8.0

FROM dependencies-native AS made-native
COPY . .
RUN python3 -m pip install -q --no-deps . && python3 -m pip uninstall -q -y pip

FROM dependencies-cpu AS made-cpu
COPY . .
RUN python3 -m pip install -q --no-deps . && python3 -m pip uninstall -q -y pip

FROM dependencies-cuda AS made-cuda
COPY . .
RUN python3 -m pip install -q --no-deps . && python3 -m pip uninstall -q -y pip

FROM dependencies-tools AS made-tools
COPY . .
RUN python3 -m pip install -q --no-deps . && python3 -m pip uninstall -q -y pip

# What all targets have: a user, the ports, the probe, and no build tools.
FROM ${PYTHON_IMAGE} AS runtime
RUN groupadd --gid 10001 narsil \
 && useradd --uid 10001 --gid narsil --home-dir /var/lib/narsil --shell /usr/sbin/nologin narsil \
 && install -d -o narsil -g narsil /var/lib/narsil /models
# The transports listen to all; the admin listener stays on loopback unless told otherwise.
ENV PATH=/opt/narsil/bin:$PATH \
    HOME=/var/lib/narsil \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NARSIL_HTTP__HOST=0.0.0.0 \
    NARSIL_GRPC__HOST=0.0.0.0 \
    NARSIL_HTTP3__HOST=0.0.0.0
# All that is written at run time (the certificate for development, caches): a volume or a tmpfs.
WORKDIR /var/lib/narsil
USER 10001:10001
EXPOSE 8000/tcp 50051/tcp 8443/tcp 8443/udp 9090/tcp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
    CMD ["python3", "-Ic", "import urllib.request as u; u.urlopen('http://127.0.0.1:9090/readyz', timeout=2)"]
ENTRYPOINT ["narsil"]
CMD ["serve", "/models/demo"]

FROM runtime AS native
COPY --from=made-native /opt/narsil /opt/narsil
ENV NARSIL_SERVER__BACKEND=native_dlrm

FROM runtime AS cuda
COPY --from=made-cuda /opt/narsil /opt/narsil
ENV NARSIL_BACKEND__DEVICE=cuda:0 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM runtime AS tools
COPY --from=made-tools /opt/narsil /opt/narsil
HEALTHCHECK NONE
CMD ["--help"]

FROM runtime AS cpu
COPY --from=made-cpu /opt/narsil /opt/narsil
