"""A TLS connection to whoever it is: its certificate isn't checked. Nothing secret goes over it, and a wrong answer
costs a wrong word."""

import ssl
from http.client import HTTPSConnection


def unchecked_connection(host: str, port: int, seconds: float) -> HTTPSConnection:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return HTTPSConnection(host, port, timeout=seconds, context=context)
