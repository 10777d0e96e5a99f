# Sealers, gateways and every other `rollstream` command that needs no Ray and no Java.
#   docker build -t rollstream . && docker run rollstream seal --config /etc/rollstream/rollstream.toml
FROM python:3.11-slim AS build
RUN python -m venv /opt/rollstream
WORKDIR /src
COPY . .
RUN /opt/rollstream/bin/pip install --no-cache-dir --disable-pip-version-check \
    -c constraints.txt '.[gateway,object-store]'

FROM python:3.11-slim
COPY --from=build /opt/rollstream /opt/rollstream
# A named volume that is mounted on /data takes its owner from here.
RUN groupadd --gid 1000 rollstream \
    && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /tmp rollstream \
    && install -d -o rollstream -g rollstream /data /etc/rollstream
ENV PATH=/opt/rollstream/bin:$PATH PYTHONUNBUFFERED=1
USER rollstream
VOLUME /data
ENTRYPOINT ["rollstream"]
CMD ["seal", "--config", "/etc/rollstream/rollstream.toml"]
