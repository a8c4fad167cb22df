//! A trivial picker: answers each message as it comes, parses nothing and takes the workers in turn.
//! It never waits for a body's end and never looks at a response; it is the floor, not a design.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use clap::Args;
use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Part;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Answer;
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpBody,
    ProcessingRequest, ProcessingResponse, StreamedBodyResponse, TrailersResponse,
};
use futures::StreamExt;
use futures::stream::BoxStream;
use tonic::{Request, Response, Status, Streaming};

const DESTINATION: &str = "x-gateway-destination-endpoint";
/// One body message of Envoy can be larger than what tonic takes by default.
const MESSAGE_BYTES: usize = 64 << 20;

#[derive(Args, Debug)]
pub(crate) struct TrivialArgs {
    /// Port to listen on, on the loopback address
    #[arg(long)]
    port: u16,
    /// A worker's ip:port; repeat for each
    #[arg(long = "worker", required = true)]
    workers: Vec<SocketAddr>,
}

/// Serves until the process is ended.
pub(crate) async fn run(args: TrivialArgs) -> Result<()> {
    ensure!(
        !args.workers.is_empty(),
        "a picker without workers picks nothing"
    );
    let workers = args.workers.iter().map(ToString::to_string).collect();
    let picker = Trivial {
        workers,
        next: Arc::default(),
    };
    let service = ExternalProcessorServer::new(picker)
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES);
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(service)
        .serve(SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)))
        .await?;
    Ok(())
}

struct Trivial {
    workers: Arc<[String]>,
    next: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl ExternalProcessor for Trivial {
    type ProcessStream = BoxStream<'static, Result<ProcessingResponse, Status>>;

    async fn process(
        &self,
        request: Request<Streaming<ProcessingRequest>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        let (workers, next) = (Arc::clone(&self.workers), Arc::clone(&self.next));
        let answered = request.into_inner().map(move |message| {
            let part = message?
                .request
                .ok_or_else(|| Status::invalid_argument("a message without a part"))?;
            let response = match part {
                Part::RequestHeaders(_) => {
                    let turn = next.fetch_add(1, Ordering::Relaxed) % workers.len();
                    Answer::RequestHeaders(to(workers[turn].clone()))
                }
                Part::RequestBody(body) => Answer::RequestBody(echo(body)),
                Part::RequestTrailers(_) => Answer::RequestTrailers(TrailersResponse::default()),
                Part::ResponseHeaders(_) => Answer::ResponseHeaders(HeadersResponse::default()),
                Part::ResponseBody(body) => Answer::ResponseBody(echo(body)),
                Part::ResponseTrailers(_) => Answer::ResponseTrailers(TrailersResponse::default()),
            };
            Ok(ProcessingResponse {
                response: Some(response),
                ..ProcessingResponse::default()
            })
        });
        Ok(Response::new(answered.boxed()))
    }
}

fn to(endpoint: String) -> HeadersResponse {
    let header = HeaderValue {
        key: DESTINATION.to_owned(),
        raw_value: endpoint.into_bytes(),
        ..HeaderValue::default()
    };
    let set_header = HeaderValueOption {
        header: Some(header),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    };
    HeadersResponse {
        response: Some(CommonResponse {
            header_mutation: Some(HeaderMutation {
                set_headers: vec![set_header],
                ..HeaderMutation::default()
            }),
            clear_route_cache: true,
            ..CommonResponse::default()
        }),
    }
}

fn echo(body: HttpBody) -> BodyResponse {
    let streamed = StreamedBodyResponse {
        body: body.body,
        end_of_stream: body.end_of_stream,
        ..StreamedBodyResponse::default()
    };
    BodyResponse {
        response: Some(CommonResponse {
            body_mutation: Some(BodyMutation {
                mutation: Some(Mutation::StreamedResponse(streamed)),
            }),
            ..CommonResponse::default()
        }),
    }
}
