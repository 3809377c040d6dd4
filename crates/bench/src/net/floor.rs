//! The least that a server in user space can do: it waits for requests, receives all that are there, and sends a constant
//! reply to each.
//!
//! It parses nothing and keeps nothing. Its requests cost only system calls and TCP. So a server that sends every reply
//! with a system call of its own cannot cost less on the same machine.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::event::epoll;

/// Token of the listening socket; connections have their index.
const LISTENER: u64 = u64::MAX;

/// Serves a port of the loopback address until it fails or the process is ended. Every arrival of bytes gets one
/// reply: PONG if it begins as PING does, else OK.
pub fn serve(port: u16) -> io::Result<Infallible> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let add = |socket: &dyn std::os::fd::AsFd, token| {
        epoll::add(&epoll, socket.as_fd(), epoll::EventData::new_u64(token), epoll::EventFlags::IN)
    };
    add(&listener, LISTENER)?;
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
    let mut buffer = vec![0; 64 << 10];
    let mut received = Vec::new();
    loop {
        let ready = match epoll::wait(&epoll, &mut events, None) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        };
        for event in ready {
            let token = event.data.u64();
            if token == LISTENER {
                let (socket, _) = listener.accept()?;
                socket.set_nodelay(true)?;
                add(&socket, connections.len() as u64)?;
                connections.push(Some(socket));
                continue;
            }
            let connection = &mut connections[token as usize];
            match connection.as_mut().map(|socket| socket.read(&mut buffer)) {
                Some(Ok(1..)) => received.push((token as usize, buffer[0] == b'P')),
                // Closing the socket removes it from the set.
                _ => *connection = None,
            }
        }
        // Replies follow after all requests, as in Redis, so that waiting clients do not interrupt this thread for each
        // request.
        for (index, ping) in received.drain(..) {
            let connection = &mut connections[index];
            let reply: &[u8] = if ping { b"+PONG\r\n" } else { b"+OK\r\n" };
            if connection.as_mut().is_some_and(|socket| socket.write_all(reply).is_err()) {
                *connection = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_answered() {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        std::thread::spawn(move || serve(port));
        let connect = || loop {
            match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                Ok(socket) => return socket,
                Err(_) => std::thread::yield_now(),
            }
        };
        drop(connect());
        let mut socket = connect();
        for (request, reply) in [("PING\r\n", "+PONG\r\n"), ("*1\r\n$3\r\nSET\r\n", "+OK\r\n")] {
            socket.write_all(request.as_bytes()).unwrap();
            let mut found = vec![0; reply.len()];
            socket.read_exact(&mut found).unwrap();
            assert_eq!(found, reply.as_bytes());
        }
    }
}
