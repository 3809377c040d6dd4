//! Keys that are spread over three servers by twemproxy, and by the ring of go-redis. `docs/sharding.md` describes both; the
//! configuration of the proxy is read from there.

mod clients {
    pub mod library;
}
mod running;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clients::library::{Language, run};
use running::Server;
use rustix::process::Signal;
use tempfile::TempDir;

/// The servers in the configuration of the documentation.
const DOCUMENTED: [&str; 3] = ["127.0.0.1:6381:1", "127.0.0.1:6382:1", "127.0.0.1:6383:1"];

/// Three servers. Each can be ended and started again, on the same port and with the same data.
struct Servers {
    folder: TempDir,
    running: Vec<Option<Server>>,
    ports: Vec<u16>,
}

impl Servers {
    fn start(password: &str) -> Servers {
        let folder = tempfile::tempdir().unwrap();
        if !password.is_empty() {
            std::fs::write(folder.path().join("password"), password).unwrap();
        }
        let ports: Vec<_> = DOCUMENTED.iter().map(|_| free_port()).collect();
        let running = ports.iter().map(|_| None).collect();
        let mut servers = Servers { folder, running, ports };
        (0..DOCUMENTED.len()).for_each(|i| servers.start_server(i));
        servers
    }

    fn start_server(&mut self, i: usize) {
        let password = self.folder.path().join("password");
        let port = self.ports[i].to_string();
        let mut options = vec!["--port", &port];
        if password.exists() {
            options.extend(["--password-file", password.to_str().unwrap()]);
        }
        self.running[i] = Some(Server::start(&self.folder.path().join(i.to_string()), &options));
    }

    fn end(&mut self, i: usize) {
        let (code, said) = self.running[i].take().unwrap().end(Signal::TERM);
        assert_eq!(code, Some(0), "{said}");
    }

    /// Runs a program that asks for the end and for the start of the last server, and returns its other lines.
    fn run(&mut self, mut program: Command) -> Vec<String> {
        // go-redis reports each attempt to connect.
        let errors = self.folder.path().join("errors");
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&errors).unwrap());
        let mut child = program.spawn().unwrap();
        let mut answers = child.stdin.take().unwrap();
        let last = DOCUMENTED.len() - 1;
        let mut lines = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            match line.unwrap().as_str() {
                "stop" => self.end(last),
                "start" => self.start_server(last),
                other => {
                    lines.push(other.to_owned());
                    continue;
                }
            }
            // A program that has failed meanwhile does not read it.
            let _ = answers.write_all(b"done\n");
        }
        let status = child.wait().unwrap();
        assert!(status.success(), "{program:?}: {status}\n{}", std::fs::read_to_string(errors).unwrap());
        lines
    }
}

/// A running proxy. It ends when it is dropped.
struct Proxy {
    child: Child,
    port: u16,
}

impl Proxy {
    /// Starts the proxy with the configuration of the documentation, in which these lines have other values.
    fn start(program: &Path, servers: &Servers, lines: &[(&str, &str)]) -> Proxy {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sharding.md")).unwrap();
        let (_, text) = text.split_once("```yaml\n").expect("a configuration");
        let (mut text, port) = (text.split_once("```").unwrap().0.to_owned(), free_port());
        let mut replace = |from: &str, to: &str| {
            assert_eq!(text.matches(from).count(), 1, "{from} in {text}");
            text = text.replace(from, to);
        };
        replace("127.0.0.1:22121", &format!("127.0.0.1:{port}"));
        for (documented, port) in DOCUMENTED.iter().zip(&servers.ports) {
            replace(documented, &format!("127.0.0.1:{port}:1"));
        }
        for (from, to) in lines {
            replace(from, to);
        }
        let file = servers.folder.path().join("nutcracker.yml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(program);
        command.arg("--conf-file").arg(&file).args([
            "--stats-addr",
            "127.0.0.1",
            "--stats-port",
            &free_port().to_string(),
        ]);
        command.arg("--output").arg(servers.folder.path().join("nutcracker.log"));
        let mut proxy = Proxy { child: command.spawn().unwrap(), port };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(
                start.elapsed() < Duration::from_secs(20) && proxy.child.try_wait().unwrap().is_none(),
                "{command:?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        proxy
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port below those that the kernel gives to clients. Otherwise a client could get the port of a server that has ended, and the
/// server could not start again.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Processes whose numbers are near each other begin far from each other.
        let port = 20_000 + (std::process::id() * 97 + NEXT.fetch_add(1, Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port as u16)).is_ok() {
            return port as u16;
        }
    }
}

/// The program of twemproxy. If it is missing, says that the test is skipped.
fn nutcracker() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = places.map(|place| place.join("nutcracker")).find(|program| program.exists());
    if found.is_none() {
        eprintln!(
            "skipped: there is no nutcracker (twemproxy); `make setup` installs it where the distribution has it"
        );
    }
    found
}

/// The arguments of `sharded.py`.
fn sharded(mode: &str, password: &str, proxy: &Proxy, servers: &Servers) -> Command {
    let mut program = Language::Python.program("sharded.py");
    program.args([mode, password, &proxy.port.to_string()]).args(servers.ports.iter().map(u16::to_string));
    program
}

#[test]
fn a_proxy_reports_errors_for_the_keys_of_a_server_that_is_gone() {
    let Some(program) = nutcracker() else { return };
    let mut servers = Servers::start("");
    let proxy = Proxy::start(&program, &servers, &[]);
    if Language::Python.is_there() {
        let lines = servers.run(sharded("error", "", &proxy, &servers));
        assert!(lines.len() == 1 && lines[0].ends_with(" error"), "{lines:?}");
    }
    dump_and_load(&servers, &proxy);
    // Other libraries need other options.
    let others = [(Language::Node, "proxied.js"), (Language::Java, "JedisProxied")];
    for (language, program) in others.into_iter().filter(|(language, _)| language.is_there()) {
        run(language.program(program).args(["127.0.0.1", &proxy.port.to_string()]));
    }
}

/// The dump of one server, loaded through the proxy, puts every key where the proxy finds it.
fn dump_and_load(servers: &Servers, proxy: &Proxy) {
    let through_proxy = |what: &str, commands: &redis::Pipeline| {
        let mut proxied = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
        proxied.write_all(&commands.get_packed_pipeline()).unwrap();
        proxied.shutdown(Shutdown::Write).unwrap();
        let mut replies = String::new();
        proxied.read_to_string(&mut replies).unwrap_or_else(|e| panic!("{what}: {e}"));
        replies
    };
    let keys: Vec<_> = (0..100).map(|i| format!("dumped:{i}")).collect();
    let mut writes = redis::pipe();
    for key in &keys {
        writes.cmd("SET").arg(key).arg(key);
    }
    assert_eq!(through_proxy("writes", &writes), "+OK\r\n".repeat(keys.len()));
    let server = servers.running[0].as_ref().unwrap();
    let size = |server: &Server| redis::cmd("DBSIZE").query::<usize>(&mut server.connect()).unwrap();
    let before = size(server);
    let file = servers.folder.path().join("dump");
    let output = server.run(&["kv", "dump", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    redis::cmd("FLUSHALL").query::<()>(&mut server.connect()).unwrap();
    run(&mut running::command(&["kv", "load", file.to_str().unwrap(), "--port", &proxy.port.to_string()]));
    assert_eq!((before > 10, size(server)), (true, before));
    let mut reads = redis::pipe();
    for key in &keys {
        reads.cmd("GET").arg(key);
    }
    let expected: String = keys.iter().map(|key| format!("${}\r\n{key}\r\n", key.len())).collect();
    assert_eq!(through_proxy("reads", &reads), expected);
}

#[test]
fn a_proxy_that_ejects_servers_asks_others_and_leaves_stale_values_there() {
    let Some(program) = nutcracker() else { return };
    if !Language::Python.is_there() {
        return;
    }
    let mut servers = Servers::start("secret");
    let lines = [
        ("auto_eject_hosts: false", "auto_eject_hosts: true"),
        ("server_retry_timeout: 1000", "server_retry_timeout: 100"),
        ("redis: true", "redis: true\n  redis_auth: secret"),
    ];
    let proxy = Proxy::start(&program, &servers, &lines);
    let lines = servers.run(sharded("eject", "secret", &proxy, &servers));
    assert!(lines.len() == 1 && lines[0].ends_with(" eject"), "{lines:?}");
}

#[test]
fn the_ring_of_go_redis_spreads_keys() {
    if !Language::Go.is_there() {
        return;
    }
    let mut servers = Servers::start("");
    let mut program = Language::Go.program("clients");
    program.arg("ring").args(servers.ports.iter().map(|port| format!("127.0.0.1:{port}")));
    let lines = servers.run(program);
    assert!(lines.len() == 1 && lines[0].ends_with(" ring"), "{lines:?}");
}
