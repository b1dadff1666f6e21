//! axum, hyper and tonic on TCP and on a Unix socket, and connections to them.

use std::net::Ipv6Addr;

use http::Method;
use http_body::Body;
use hyper_util::{server::conn::auto, service::TowerToHyperService};
use tokio::net::{UnixListener, UnixStream};
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tower::BoxError;

use super::*;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Framework {
    Axum,
    Hyper,
    Tonic,
}

/// The socket that a server listens on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Socket {
    Tcp,
    /// TCP, where addresses of IPv4 are written as IPv6
    DualStack,
    Unix,
}

/// The origin of a client's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    /// 127.0.0.x
    Peer(u8),
    Unix,
}

#[derive(Debug)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(String),
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Place {
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Tcp(address) => *address,
            Self::Unix(path) => panic!("no address: {path}"),
        }
    }

    pub(crate) async fn connect(&self, from: From) -> Box<dyn Stream> {
        match (self, from) {
            (Self::Unix(path), From::Unix) => Box::new(UnixStream::connect(path).await.unwrap()),
            (Self::Tcp(to), From::Peer(last)) => {
                Box::new(connect([127, 0, 0, last].into(), *to).await)
            }
            _ => panic!("no way from {from:?} to {self:?}"),
        }
    }
}

enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Bound {
    async fn new(socket: Socket) -> (Self, Place) {
        if let Socket::Unix = socket {
            // A name that is no file goes with the socket.
            let name = format!("\0{}", unique("tower-ratelimit"));
            return (
                Self::Unix(UnixListener::bind(&name).unwrap()),
                Place::Unix(name),
            );
        }
        let host: IpAddr = match socket {
            Socket::DualStack => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        };
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let place = Place::Tcp((Ipv4Addr::LOCALHOST, port).into());
        (Self::Tcp(listener), place)
    }
}

/// Serves a service of hyper's on TCP.
pub(crate) async fn serve_hyper<S, B>(service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let (bound, place) = Bound::new(Socket::Tcp).await;
    on_hyper(bound, service);
    place.address()
}

/// Serves behind the layer. Each framework notes the peer in the way that is its own.
pub(crate) async fn serve(framework: Framework, socket: Socket, layer: RateLimitLayer) -> Place {
    let (bound, place) = Bound::new(socket).await;
    match framework {
        Framework::Axum => on_axum(bound, layer),
        Framework::Hyper => {
            let hello = service_fn(async |request: Request<Incoming>| {
                // Over HTTP/2 hyper sends whatever body there is, and clients take it for an error.
                let head = request.method() == Method::HEAD;
                let body = if head { "" } else { "hello" };
                Ok::<_, Infallible>(Response::new(body.to_owned()))
            });
            on_hyper(bound, layer.layer(hello));
        }
        Framework::Tonic => on_tonic(bound, layer),
    }
    place
}

fn on_axum(bound: Bound, layer: RateLimitLayer) {
    let app = Router::new().route("/", on_get(async || "hello"));
    let app = app.layer(layer);
    match bound {
        Bound::Tcp(listener) => {
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            tokio::spawn(axum::serve(listener, app).into_future());
        }
        Bound::Unix(listener) => {
            tokio::spawn(axum::serve(listener, app).into_future());
        }
    }
}

/// Serves HTTP/1 and HTTP/2. hyper notes no peer, so the accept loop does.
fn on_hyper<S, B>(bound: Bound, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            let (stream, peer): (Box<dyn Stream>, _) = match &bound {
                Bound::Tcp(listener) => {
                    let (stream, peer) = listener.accept().await.unwrap();
                    (Box::new(stream), Some(PeerAddr(peer)))
                }
                Bound::Unix(listener) => (Box::new(listener.accept().await.unwrap().0), None),
            };
            let service = service
                .clone()
                .map_request(move |mut request: Request<Incoming>| {
                    if let Some(peer) = peer {
                        request.extensions_mut().insert(peer);
                    }
                    request
                });
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let service = TowerToHyperService::new(service);
                server.serve_connection(TokioIo::new(stream), service).await
            });
        }
    });
}

fn on_tonic(bound: Bound, layer: RateLimitLayer) {
    let server = Server::builder()
        .accept_http1(true)
        .layer(layer)
        .add_service(OrdersServer::default());
    match bound {
        Bound::Tcp(listener) => {
            tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        }
        Bound::Unix(listener) => {
            tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        }
    }
}
