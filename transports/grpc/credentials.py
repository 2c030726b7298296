"""A grpcio server's certificate, and whose clients it takes."""

import grpc

from transports.tls import Identity, Renewed, TlsFiles


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return credentials that follow the files; with a client CA, clients must show a certificate.

    grpcio's Python interface has no way to make it optional. It speaks ALPN "h2" by itself. Raises
    OSError.
    """
    renewed = Renewed(files, _configuration)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Return what is new; grpcio asks on a thread of its own, before each handshake."""
        return renewed.value if renewed.refresh() else None

    return grpc.dynamic_ssl_server_credentials(
        renewed.value, fetch, require_client_authentication=files.client_ca is not None
    )


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(identity.key_pem, identity.chain_pem)], identity.client_ca_pem or None
    )
