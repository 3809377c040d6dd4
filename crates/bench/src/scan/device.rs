//! The device's rate, measured by `fio` if it is installed, and otherwise by the same reads of this
//! program.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::GIB;
use super::uring::Ring;
use crate::{Error, Result};

/// Bytes of a read past the page cache, and number of reads at a time.
pub const SIZE: usize = 2 << 20;
pub const DEPTH: usize = 8;

/// The program that measures the device's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    Fio,
    Own,
}

impl Judge {
    /// `fio`, if it is installed.
    pub fn find() -> Self {
        let version =
            Command::new("fio").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if version.is_ok_and(|status| status.success()) { Judge::Fio } else { Judge::Own }
    }

    pub fn name(self) -> &'static str {
        match self {
            Judge::Fio => "fio",
            Judge::Own => "own reader, for fio is not installed",
        }
    }

    /// GiB per second of one pass over a file.
    pub fn gib_per_s(self, path: &Path, size: u64) -> Result<f64> {
        match self {
            Judge::Fio => fio(path, size),
            Judge::Own => {
                let requests = (0..size / SIZE as u64).map(|number| (number * SIZE as u64, SIZE));
                let start = std::time::Instant::now();
                Ring::open(path, SIZE, DEPTH, false)?.read(requests, |_| true)?;
                Ok(size as f64 / GIB / start.elapsed().as_secs_f64())
            }
        }
    }
}

fn fio(path: &Path, size: u64) -> Result<f64> {
    let output = Command::new("fio")
        .args(["--name=device", "--rw=read", "--direct=1", "--readonly", "--ioengine=io_uring"])
        .args(["--output-format=json", &format!("--bs={SIZE}"), &format!("--iodepth={DEPTH}")])
        .args([format!("--size={size}"), format!("--filename={}", path.display())])
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io("run fio"))?;
    let said: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    let rate = said.as_ref().and_then(|said| said["jobs"][0]["read"]["bw_bytes"].as_f64());
    rate.filter(|rate| *rate > 0.0).map(|rate| rate / GIB).ok_or_else(|| {
        let problem = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Error::io("run fio")(std::io::Error::other(problem))
    })
}
