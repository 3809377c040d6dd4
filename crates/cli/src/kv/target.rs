//! The running server that a command talks to, over its own protocol.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use redis::{Client, Connection, ConnectionAddr, IntoConnectionInfo, RedisError};

use crate::failure::hinted;

/// The server and its password.
#[derive(clap::Args)]
pub struct Target {
    /// Address of the server.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port of the server.
    #[arg(long, short, default_value_t = 6380)]
    port: u16,
    /// File whose first line is the server's password; otherwise BEDPLATE_PASSWORD is used if it is set.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

/// The password in the file, or in the environment.
pub fn password(file: Option<&PathBuf>) -> anyhow::Result<Option<String>> {
    let Some(path) = file else {
        return Ok(std::env::var("BEDPLATE_PASSWORD").ok().filter(|password| !password.is_empty()));
    };
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(Some(line.to_owned())),
        _ => Err(hinted(format!("{} holds no password", path.display()), "its first line is the password")),
    }
}

impl Target {
    /// "127.0.0.1:6380"
    pub fn name(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Connects and logs in. Replies may take as long as they need: a checkpoint can take minutes.
    pub fn connect(&self) -> anyhow::Result<Connection> {
        let info = ConnectionAddr::Tcp(self.host.clone(), self.port).into_connection_info()?;
        // A proxy in front of several servers closes a connection that introduces itself with CLIENT SETINFO.
        let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
        if let Some(password) = password(self.password_file.as_ref())? {
            settings = settings.set_password(password);
        }
        let client = Client::open(info.set_redis_settings(settings))?;
        client.get_connection_with_timeout(Duration::from_secs(5)).map_err(|e| self.refused(e))
    }

    fn refused(&self, error: RedisError) -> anyhow::Error {
        let message = format!("cannot talk to the server at {}: {error}", self.name());
        if error.is_io_error() {
            hinted(message, "start one with `bedplate kv serve`, or choose another with --host and --port")
        } else {
            hinted(message, "give the password with --password-file or BEDPLATE_PASSWORD")
        }
    }

    /// An error of a command that was sent, with advice about the common ones.
    pub fn failed(&self, what: &str, error: RedisError) -> anyhow::Error {
        let message = format!("{what} at {}: {error}", self.name());
        match error.code() {
            Some("NOAUTH" | "WRONGPASS") => {
                hinted(message, "give the password with --password-file or BEDPLATE_PASSWORD")
            }
            _ if error.is_io_error() => hinted(message, "the server went away: look at its log"),
            _ => anyhow::anyhow!(message),
        }
    }
}
