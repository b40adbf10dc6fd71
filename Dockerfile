# The signer, and pactctl beside it, in an image that holds nothing else but the
# certificates of public authorities.
#
#   docker build -t pact-signer .
#   buildah build -t pact-signer .
#
# It starts from no image but Go's own, and fetches nothing but Go modules.
# GO_IMAGE and GOPROXY name a mirror of either; VERSION and REVISION are what
# `signer version` and the labels tell (`make image` sets them).

ARG GO_IMAGE=docker.io/library/golang:1.26

FROM ${GO_IMAGE} AS build
ARG GOPROXY
ENV GOTOOLCHAIN=local CGO_ENABLED=0
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION
ARG REVISION
ARG build=github.com/pactsigner/pactsigner/internal/build
RUN go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X ${build}.version=${VERSION} -X ${build}.revision=${REVISION}" \
      -o /image/bin/ ./cmd/signer ./cmd/pactctl
# Where a signer that was told nothing keeps its keys and records, and where an
# import of records is unpacked: nothing else is ever written to.
RUN mkdir -p /image/folders/data /image/folders/tmp && \
    chmod 0700 /image/folders/data && chmod 1777 /image/folders/tmp

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /image/bin/ /
COPY --from=build --chown=65532:65532 /image/folders/ /
COPY LICENSE /LICENSE
# By number: the image has no list of users, and Kubernetes' runAsNonRoot wants one.
USER 65532:65532
ENV PATH=/ HOME=/data XDG_STATE_HOME=/data
EXPOSE 8787 8788 8789 8790
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="pact-signer" \
      org.opencontainers.image.description="Managed signer for PACT personal agents: short-lived PA-JWTs, key rotation, kill switch" \
      org.opencontainers.image.source="https://github.com/pactsigner/pactsigner" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENTRYPOINT ["/signer"]
CMD ["serve"]
