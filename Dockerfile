# docker build --tag classwise .
# docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" classwise audit model.safetensors --data photos/ --threat Linf:4/255
FROM python:3.11-slim

# Any user of --user can write to the home folder, which contains caches.
ENV HOME=/tmp PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

COPY pyproject.toml README.md LICENSE constraints.txt /opt/classwise/
COPY src /opt/classwise/src
# The CPU build of PyTorch; for a GPU: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# hadolint ignore=DL3013  # $torch contains the version
RUN torch="$(grep '^torch==' /opt/classwise/constraints.txt)" \
    && pip install --index-url "$TORCH_INDEX" "$torch" \
    && pip install --constraint /opt/classwise/constraints.txt /opt/classwise

RUN useradd --uid 1000 classwise
USER 1000
WORKDIR /work

ENTRYPOINT ["classwise"]
CMD ["--help"]
