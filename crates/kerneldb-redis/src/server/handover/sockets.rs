//! Takes sockets out of the kernel's socket map without losing a byte.
//!
//! A socket in the map has a queue of its own for bytes that the verdict has passed, and the kernel frees this queue with all bytes in it
//! when the socket leaves the map. So the queue has to be empty, and has to stay so until the socket has left. A filter on the socket drops
//! packets meanwhile, as if the network had lost them. The client's TCP sends them again, a fifth of a second later.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Position of the flags in TCP's header, and the flag that ends a connection at once.
const FLAGS: u32 = 13;
const RST: u32 = 4;

/// Lets no packet of the client pass until [`release_input`], except the end of the connection (RST), which would not be sent again.
pub(in super::super) fn hold_input(stream: &TcpStream) -> io::Result<()> {
    let step = |code: u32, k, jf| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut code = [
        // The packet begins with the header of TCP.
        step(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, FLAGS, 0),
        step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, RST, 1),
        step(libc::BPF_RET | libc::BPF_K, u32::MAX, 0),
        // No byte may pass.
        step(libc::BPF_RET | libc::BPF_K, 0, 0),
    ];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    set(stream, libc::SO_ATTACH_FILTER, &program)
}

/// Lets packets pass again.
pub(in super::super) fn release_input(stream: &TcpStream) -> io::Result<()> {
    set(stream, libc::SO_DETACH_FILTER, &0i32)
}

fn set<T>(stream: &TcpStream, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: The option takes a value of this type, which lives across the call, as does the filter that it points to.
    let r = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_end_of_a_connection_is_not_held() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        hold_input(&server).unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn held_packets_arrive_later() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        hold_input(&server).unwrap();
        client.write_all(b"held").unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let mut bytes = [0; 4];
        assert_eq!(server.read(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
        release_input(&server).unwrap();
        server.set_nonblocking(false).unwrap();
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"held");
        assert!(release_input(&server).is_err(), "there is no filter");
    }
}
