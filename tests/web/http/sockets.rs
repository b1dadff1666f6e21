//! axum, hyper and tonic on TCP, on a Unix socket and behind a balancer that uses the PROXY
//! protocol, and connections to them.

use std::{io, net::Ipv6Addr};

use axum::{
    extract::connect_info::{ConnectInfo, Connected},
    serve::IncomingStream,
};
use http::Method;
use http_body::Body;
use hyper_util::{server::conn::auto, service::TowerToHyperService};
use tokio::{
    io::ReadBuf,
    net::{UnixListener, UnixStream},
    sync::mpsc,
};
use tonic::{
    codegen::tokio_stream::wrappers::{ReceiverStream, UnixListenerStream},
    transport::server::Connected as TonicConnected,
};
use tower::{BoxError, util::MapRequestLayer};

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
    /// TCP, each connection with a header of the PROXY protocol before the first byte of HTTP
    Proxied,
}

/// The origin of a client's connection, and its first bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum From {
    /// 127.0.0.x
    Peer(u8),
    /// 127.0.0.1, the balancer, with this PROXY header
    Balancer(&'static [u8]),
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
            (Self::Tcp(to), From::Balancer(header)) => {
                let mut stream = connect(Ipv4Addr::LOCALHOST, *to).await;
                stream.write_all(header).await.unwrap();
                Box::new(stream)
            }
            _ => panic!("no way from {from:?} to {self:?}"),
        }
    }
}

enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
    Proxied(ProxyListener),
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
        let bound = match socket {
            Socket::Proxied => Self::Proxied(ProxyListener::new(listener)),
            _ => Self::Tcp(listener),
        };
        (bound, Place::Tcp((Ipv4Addr::LOCALHOST, port).into()))
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
        Bound::Proxied(listener) => {
            let note = |mut request: Request<axum::body::Body>| {
                let noted = request.extensions().get::<ConnectInfo<Noted>>();
                let ConnectInfo(Noted(peer)) = noted.expect("axum notes the connection").clone();
                request.extensions_mut().insert(peer);
                request
            };
            let app = app.layer(MapRequestLayer::new(note));
            let app = app.into_make_service_with_connect_info::<Noted>();
            tokio::spawn(axum::serve(listener, app).into_future());
        }
    }
}

/// Serves HTTP/1 and HTTP/2. hyper notes no peer, so the accept loop does.
fn on_hyper<S, B>(mut bound: Bound, service: S)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            let (stream, peer): (Box<dyn Stream>, _) = match &mut bound {
                Bound::Tcp(listener) => {
                    let (stream, peer) = listener.accept().await.unwrap();
                    (Box::new(stream), Some(PeerAddr(peer)))
                }
                Bound::Unix(listener) => (Box::new(listener.accept().await.unwrap().0), None),
                Bound::Proxied(listener) => {
                    let stream = listener.next().await;
                    let peer = stream.peer;
                    (Box::new(stream), Some(peer))
                }
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
        Bound::Proxied(listener) => {
            tokio::spawn(server.serve_with_incoming(ReceiverStream::new(listener.accepted)));
        }
    }
}

/// Takes connections from a balancer, and reads the PROXY header of each.
struct ProxyListener {
    accepted: mpsc::Receiver<io::Result<Proxied>>,
    address: SocketAddr,
}

impl ProxyListener {
    fn new(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, accepted) = mpsc::channel(16);
        tokio::spawn(async move {
            loop {
                let (mut stream, balancer) = listener.accept().await.unwrap();
                let sender = sender.clone();
                // A silent client keeps no other one waiting.
                tokio::spawn(async move {
                    let client = proxy_header(&mut stream).await.unwrap();
                    let peer = PeerAddr(client.unwrap_or(balancer));
                    sender.send(Ok(Proxied { stream, peer })).await
                });
            }
        });
        Self { accepted, address }
    }

    async fn next(&mut self) -> Proxied {
        let accepted = self.accepted.recv().await;
        accepted.expect("the listener stays").unwrap()
    }
}

/// A connection whose PROXY header has been read.
struct Proxied {
    stream: TcpStream,
    peer: PeerAddr,
}

/// Reads the header of <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>, sections 2.1
/// and 2.2. `None` for `UNKNOWN` and `LOCAL`.
async fn proxy_header(stream: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    if head == SIGNATURE {
        let [command, family] = [stream.read_u8().await?, stream.read_u8().await?];
        let mut rest = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut rest).await?;
        let mut rest = &*rest;
        return Ok(match (command, family) {
            (0x20, _) => None,
            (0x21, 0x11) => {
                let source = Ipv4Addr::from_bits(rest.read_u32().await?);
                let _destination = rest.read_u32().await?;
                Some((source, rest.read_u16().await?).into())
            }
            (0x21, 0x21) => {
                let source = Ipv6Addr::from_bits(rest.read_u128().await?);
                let _destination = rest.read_u128().await?;
                Some((source, rest.read_u16().await?).into())
            }
            _ => return Err(wrong("version, command or family")),
        });
    }
    let mut line = head.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() == 107 {
            return Err(wrong("too long for a line"));
        }
        line.push(stream.read_u8().await?);
    }
    let line = String::from_utf8(line).map_err(|_| wrong("not ASCII"))?;
    let words: Vec<_> = line.trim_end().split(' ').collect();
    match *words {
        ["PROXY", "UNKNOWN", ..] => Ok(None),
        ["PROXY", "TCP4" | "TCP6", source, _, port, _] => {
            let source: IpAddr = source.parse().map_err(|_| wrong("address"))?;
            let port: u16 = port.parse().map_err(|_| wrong("port"))?;
            Ok(Some((source, port).into()))
        }
        _ => Err(wrong("not a PROXY header")),
    }
}

impl axum::serve::Listener for ProxyListener {
    type Io = Proxied;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Proxied, SocketAddr) {
        let stream = self.next().await;
        let PeerAddr(address) = stream.peer;
        (stream, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

/// The address that axum records for a connection.
#[derive(Clone)]
struct Noted(PeerAddr);

impl Connected<IncomingStream<'_, ProxyListener>> for Noted {
    fn connect_info(stream: IncomingStream<'_, ProxyListener>) -> Self {
        Self(PeerAddr(*stream.remote_addr()))
    }
}

/// tonic puts this into each request's extensions as it is.
impl TonicConnected for Proxied {
    type ConnectInfo = PeerAddr;

    fn connect_info(&self) -> PeerAddr {
        self.peer
    }
}

impl AsyncRead for Proxied {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Proxied {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
