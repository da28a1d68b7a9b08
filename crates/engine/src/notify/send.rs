//! The two ways to reach people: a webhook, and mail by the machine's own program. Each call ends after a while, whether or
//! not anybody answers.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_process::user::{Account, is_root};

/// Longest time of one call of a webhook.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Longest time of the program that sends mail.
const MAIL_MAX: Duration = Duration::from_secs(30);
/// Time between two looks at it.
const LOOK: Duration = Duration::from_millis(20);

/// Sends a webhook a JSON document by POST.
///
/// # Errors
/// If it cannot be reached, or answers anything but a success.
pub fn post(url: &str, body: &serde_json::Value) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let provider = rustls::crypto::ring::default_provider();
    // It may be there already.
    let _ = provider.install_default();
    runtime.block_on(async {
        let client = reqwest::Client::builder()
            .timeout(CALL_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let request = client.post(url).header("content-type", "application/json");
        let status = request.body(body.to_string()).send().await?.status();
        ensure!(status.is_success(), "it answered {status}");
        Ok(())
    })
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Addresses, without line ends.
    pub to: Vec<String>,
    /// What it is about; control characters become spaces.
    pub subject: String,
    /// Its text.
    pub text: String,
}

impl Letter {
    /// With its header. Addresses and the subject hold no line ends, so nothing else gets into the header.
    fn with_header(&self) -> String {
        let one_line = |text: &str| text.replace(|c: char| c.is_control(), " ");
        let to: Vec<String> = self.to.iter().map(|address| one_line(address)).collect();
        format!(
            "To: {}\nSubject: [forebay] {}\nContent-Type: text/plain; charset=utf-8\nAuto-Submitted: auto-generated\n\n{}",
            to.join(", "),
            one_line(&self.subject),
            self.text
        )
    }

    /// Sends it by a program that reads it as `sendmail -t -i` does, with the rights of a user if one is given.
    ///
    /// # Errors
    /// If the program cannot be started, fails, or takes too long.
    pub fn mail(&self, sendmail: &str, sender: Option<&Account>) -> Result<()> {
        let mut command = Command::new(sendmail);
        command.args(["-t", "-i"]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(account) = sender.filter(|_| is_root()) {
            let rights = account.rights();
            // SAFETY: between fork and exec it makes system calls on memory that was prepared before.
            unsafe { command.pre_exec(move || rights.take()) };
        }
        let mut child = command.spawn().with_context(|| sendmail.to_owned())?;
        if let Some(mut stdin) = child.stdin.take() {
            // What the program says to it is in its exit code. It is less than a pipe holds.
            let _ = stdin.write_all(self.with_header().as_bytes());
        }
        let status = wait(&mut child).with_context(|| sendmail.to_owned())?;
        ensure!(status.success(), "{sendmail} failed: {status}");
        Ok(())
    }
}

/// Waits for a program, and kills it if it takes too long.
fn wait(child: &mut Child) -> Result<ExitStatus> {
    let mut left = MAIL_MAX;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if left.is_zero() {
            let _ = child.kill();
            let _ = child.wait();
            bail!("it took longer than {} s", MAIL_MAX.as_secs());
        }
        std::thread::sleep(LOOK);
        left = left.saturating_sub(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_webhook_gets_a_document_and_its_refusal_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let mut requests = Vec::new();
            for answer in ["204 No Content", "500 Internal Server Error"] {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut request, mut part) = (Vec::new(), [0; 4096]);
                while !String::from_utf8_lossy(&request).contains('}') {
                    let length = stream.read(&mut part).unwrap();
                    request.extend_from_slice(&part[..length]);
                }
                write!(stream, "HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n").unwrap();
                requests.push(String::from_utf8(request).unwrap());
            }
            requests
        });
        post(&url, &json!({ "job": 1 })).unwrap();
        let refused = post(&url, &json!({ "job": 2 })).unwrap_err().to_string();
        assert!(refused.contains("500"), "{refused}");
        let requests = served.join().unwrap();
        assert!(requests[0].starts_with("POST /hook ") && requests[0].ends_with("{\"job\":1}"));
    }

    #[test]
    fn mail_goes_through_the_program_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let (program, seen) = (folder.path().join("sendmail"), folder.path().join("letter"));
        let script = format!("#!/bin/sh\ncat > {}\n", seen.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let letter = Letter {
            to: vec!["ops@example.com".to_owned(), "ann".to_owned()],
            subject: "job 1\nBcc: x@example.com".to_owned(),
            text: "done\n".to_owned(),
        };
        letter.mail(&program.display().to_string(), None).unwrap();
        let seen = std::fs::read_to_string(seen).unwrap();
        let header = "To: ops@example.com, ann\nSubject: [forebay] job 1 Bcc: x@example.com\n";
        assert!(seen.starts_with(header) && seen.ends_with("\n\ndone\n"), "{seen}");
        std::fs::write(&program, "#!/bin/sh\nexit 75\n").unwrap();
        let failed = letter.mail(&program.display().to_string(), None).unwrap_err().to_string();
        assert!(failed.contains("75"), "{failed}");
    }
}
