"""TLS of the HTTP API, with certificates that change while it serves."""

from __future__ import annotations

import logging
import ssl

from outrider.wire.tls import Pem, Tls

_LOG = logging.getLogger(__name__)


class HttpTls:
    """Makes the context of an HTTP server. Each handshake uses what the files hold then."""

    def __init__(self, tls: Tls) -> None:
        """Raises ConfigError: no certificate is configured."""
        tls.need_certificate()
        self._tls = tls
        self._pem = tls.pem
        self._current = self._make(self._pem)

    def context(self) -> ssl.SSLContext:
        """The context to listen with."""
        listening = self._make(self._pem)
        listening.sni_callback = self._renew
        return listening

    def _renew(self, connection: ssl.SSLObject, name: str | None, listening: ssl.SSLContext) -> None:
        """Called in each handshake, before the certificate is sent. Files that are wrong change nothing."""
        pem = self._tls.pem
        if pem is not self._pem:
            try:
                self._current = self._make(pem)
            except (ssl.SSLError, OSError) as error:
                _LOG.error("%s: what was in force stays: %s", self._tls.section, error)
            self._pem = pem
        connection.context = self._current

    def _make(self, pem: Pem) -> ssl.SSLContext:
        config = self._tls.config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(config.certificate, config.key)
        context.set_alpn_protocols(["http/1.1"])
        if pem.ca:
            context.load_verify_locations(cadata=pem.ca.decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED
            # A ticket would let a client back in whose authority is not trusted any more.
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
        return context
