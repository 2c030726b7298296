"""How spans leave: in batches, by OTLP, on a thread of OpenTelemetry's own."""

from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as ByGrpc
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as ByHttp
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from app.tracing.options import TracingOptions

_EXPORT_TIMEOUT_S = 5.0
_HTTP_PATH = "/v1/traces"


def make_provider(options: TracingOptions) -> TracerProvider:
    """Return what makes spans and sends them; nothing is connected yet."""
    provider = TracerProvider(
        sampler=ALWAYS_ON,  # what is not to be traced never gets there
        resource=Resource.create(
            {"service.name": options.service_name, "service.version": version("narsil")}
        ),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(_exporter(options)))
    return provider


def _exporter(options: TracingOptions) -> SpanExporter:
    endpoint = options.endpoint
    if options.protocol == "http":
        path = "" if endpoint.rstrip("/").endswith(_HTTP_PATH) else _HTTP_PATH
        return ByHttp(endpoint.rstrip("/") + path, timeout=_EXPORT_TIMEOUT_S)
    plain = endpoint.startswith("http://")
    return ByGrpc(endpoint, insecure=plain, timeout=_EXPORT_TIMEOUT_S)
