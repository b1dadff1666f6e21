//! Ports of this machine, for servers that tests start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::SystemTime;

/// Returns a port without a listener
///
/// Below the range from which the kernel takes the ports of outgoing connections (from 32768 on
/// Linux, 49152 on macOS): none of them can take the port of a killed server before it restarts,
/// and a connect to that port cannot end up connected to itself.
pub fn free_port() -> u16 {
    port_where(is_free)
}

/// The same for a node of a Cluster, which also listens ten thousand ports above
pub fn free_cluster_port() -> u16 {
    const OUTGOING: u16 = 32_768;
    port_where(|port| port + 10_000 < OUTGOING && is_free(port) && is_free(port + 10_000))
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(address(port)).is_ok()
}

fn port_where(suits: impl Fn(u16) -> bool) -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static OFFSET: OnceLock<u16> = OnceLock::new();

    // Test binaries that run side by side begin at different places.
    let offset = *OFFSET.get_or_init(|| {
        let nanos = SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        ((nanos ^ process::id().wrapping_mul(2_654_435_761)) % u32::from(COUNT)) as u16
    });
    for _ in 0..COUNT {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (offset + next) % COUNT;
        if suits(port) {
            return port;
        }
    }
    panic!("no free port from {FIRST} to {}", FIRST + COUNT - 1);
}

pub fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
