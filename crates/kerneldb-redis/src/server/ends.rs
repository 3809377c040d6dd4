//! The two ends of a connection, by which the local fast path finds it.

use std::net::{IpAddr, SocketAddr};

use super::layout::srv_peer;

/// No connection has these.
pub(super) const NO_ENDS: srv_peer =
    srv_peer { client_ip: [0; 4], server_ip: [0; 4], client_port: 0, server_port: 0, _pad: 0 };

/// The ends of a connection as the programs know them: IPv4 addresses in their IPv6 form.
pub(super) fn ends_of(client: SocketAddr, server: SocketAddr) -> srv_peer {
    let words = |ip: IpAddr| {
        let octets = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        std::array::from_fn(|i| u32::from_ne_bytes(octets[4 * i..4 * i + 4].try_into().expect("4 bytes")))
    };
    srv_peer {
        client_ip: words(client.ip()),
        server_ip: words(server.ip()),
        client_port: client.port(),
        server_port: server.port(),
        _pad: 0,
    }
}

/// The ends of a connection as a key of the map.
pub(super) fn ends_key(ends: &srv_peer) -> [u8; size_of::<srv_peer>()] {
    // SAFETY: integers without implicit padding, all of them initialized.
    unsafe { std::mem::transmute(*ends) }
}
