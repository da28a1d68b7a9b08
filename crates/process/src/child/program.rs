//! Starts a program without a copy of this process's memory.
//!
//! Between fork and exec a child needs memory for a moment only, and copying page tables for it, and the pages
//! that both then write, costs more than all else. So the child borrows the memory of its parent, which the
//! kernel stops meanwhile (vfork(2)), as posix_spawn(3) does. It has a stack of its own, no signal reaches it
//! before it has lost its handlers, and it makes system calls only.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;
use std::ptr;

use rustix::process::Pid;

use super::group;

/// The stack of a child up to its exec, in bytes.
const STACK_BYTES: usize = 64 << 10;

/// What runs a file that is no program, as execvp(3) has it.
const SHELL: &CStr = c"/bin/sh";

/// A program with its arguments and its environment.
pub struct Program {
    /// Where it may lie, in the order in which that is tried.
    files: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

/// What a child needs. Pointers are to what outlives the call, each list ends with a null pointer.
struct Start<'a> {
    files: &'a [CString],
    /// With room for one more in front.
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
    prepare: &'a mut dyn FnMut() -> io::Result<()>,
    /// Whether the kernel gave it the default of all that its parent handles.
    handles_nothing: bool,
    failed: Option<io::Error>,
}

impl Program {
    /// The program of a command, found by the `PATH` that the command sets. Nothing else of the command counts,
    /// and nothing is inherited.
    ///
    /// # Errors
    /// If a word of it holds a zero byte.
    pub fn of(command: &Command) -> io::Result<Program> {
        let name = command.get_program();
        let set = |variable: &str| {
            command.get_envs().find(|(key, _)| *key == variable).and_then(|(_, value)| value)
        };
        let files = if name.as_bytes().contains(&b'/') {
            vec![CString::new(name.as_bytes())?]
        } else {
            let path = set("PATH").unwrap_or(OsStr::new("/bin:/usr/bin"));
            let folders = path.as_bytes().split(|byte| *byte == b':');
            let in_folder = |folder: &[u8]| {
                let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
                CString::new([folder, slash, name.as_bytes()].concat())
            };
            folders.map(in_folder).collect::<Result<_, _>>()?
        };
        let words = std::iter::once(name).chain(command.get_args());
        let arguments =
            words.map(|word| CString::new(word.as_bytes())).collect::<Result<_, _>>()?;
        let variable = |(key, value): (&OsStr, Option<&OsStr>)| {
            value.map(|value| CString::new([key.as_bytes(), b"=", value.as_bytes()].concat()))
        };
        let environment = command.get_envs().filter_map(variable).collect::<Result<_, _>>()?;
        Ok(Program { files, arguments, environment })
    }

    /// Its name, as it was given.
    pub(super) fn name(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.arguments[0].to_bytes()))
    }

    /// Starts it, once `prepare` has made of the child what it shall be: in the control group whose folder `group` is,
    /// or in that of this process.
    ///
    /// # Errors
    /// The error of `prepare`, or why the program cannot be executed or the group not be entered.
    ///
    /// # Safety
    /// `prepare` runs in a child that shares the memory of this process: it may make system calls of its own
    /// thread only, and must neither allocate nor panic.
    pub unsafe fn start(
        &self,
        prepare: &mut dyn FnMut() -> io::Result<()>,
        group: Option<BorrowedFd<'_>>,
    ) -> io::Result<Pid> {
        let mut start = Start {
            files: &self.files,
            arguments: pointers(
                std::iter::once(SHELL).chain(self.arguments.iter().map(|word| &**word)),
            ),
            environment: pointers(self.environment.iter().map(|word| &**word)),
            prepare,
            handles_nothing: group.is_some() && group::CLEARS_HANDLERS,
            failed: None,
        };
        let mut stack: Vec<MaybeUninit<u128>> = Vec::with_capacity(STACK_BYTES / size_of::<u128>());
        let mut blocked = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: the stack and all that `start` points to live until the child has executed its program or
        // ended, which CLONE_VFORK waits for; the child touches nothing else. The sets are filled by the calls.
        let child = unsafe {
            libc::sigfillset(blocked.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
            let child = match group {
                None => {
                    let top = stack.as_mut_ptr().add(stack.capacity()).cast();
                    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
                    let child = libc::clone(run, top, flags, (&raw mut start).cast());
                    Pid::from_raw(child).filter(|_| child > 0).ok_or_else(io::Error::last_os_error)
                }
                Some(group) => group::clone(&mut stack, group, run, (&raw mut start).cast()),
            };
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
            child?
        };
        match start.failed {
            None => Ok(child),
            Some(error) => {
                // It ended by itself; its number stands for it until here.
                let _ = rustix::io::retry_on_intr(|| {
                    rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
                });
                Err(error)
            }
        }
    }
}

fn pointers<'a>(words: impl Iterator<Item = &'a CStr>) -> Vec<*const libc::c_char> {
    words.map(CStr::as_ptr).chain([ptr::null()]).collect()
}

/// The child.
extern "C" fn run(start: *mut libc::c_void) -> libc::c_int {
    // SAFETY: what `Program::start` gave, which does nothing before the child has gone.
    let start = unsafe { &mut *start.cast::<Start<'_>>() };
    start.failed = Some(start.run());
    127
}

impl Start<'_> {
    /// Returns only if the program is not executed.
    fn run(&mut self) -> io::Error {
        lose_handlers(self.handles_nothing);
        match (self.prepare)() {
            Ok(()) => self.execute(),
            Err(error) => error,
        }
    }

    /// As execvp(3).
    fn execute(&mut self) -> io::Error {
        let mut refused = None;
        for file in self.files {
            // SAFETY: lists of strings that end with null pointers, made by the parent.
            unsafe {
                libc::execve(file.as_ptr(), self.arguments[1..].as_ptr(), self.environment.as_ptr())
            };
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOEXEC) => {
                    self.arguments[1] = file.as_ptr();
                    // SAFETY: as above.
                    unsafe {
                        libc::execve(
                            SHELL.as_ptr(),
                            self.arguments.as_ptr(),
                            self.environment.as_ptr(),
                        );
                    }
                    return io::Error::last_os_error();
                }
                Some(libc::EACCES) => refused = Some(error),
                Some(
                    libc::ENOENT | libc::ESTALE | libc::ENOTDIR | libc::ENODEV | libc::ETIMEDOUT,
                ) => {}
                _ => return error,
            }
        }
        refused.unwrap_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }
}

/// Gives the child the default of all that its parent handles, and lets signals in. What is ignored stays so,
/// but for SIGPIPE, which the standard library ignores for its own sake; that is all if nothing is handled any more.
fn lose_handlers(handles_nothing: bool) {
    // SAFETY: handlers belong to the child alone; each call reads or writes one action or set.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let all =
            if handles_nothing { libc::SIGPIPE..=libc::SIGPIPE } else { 1..=libc::SIGRTMAX() };
        for signal in all {
            let known = libc::sigaction(signal, ptr::null(), &raw mut action) == 0;
            let ignored = action.sa_sigaction == libc::SIG_IGN && signal != libc::SIGPIPE;
            if known && action.sa_sigaction != libc::SIG_DFL && !ignored {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const default, ptr::null_mut());
            }
        }
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// The status with which a command ends.
    fn status(command: &Command) -> io::Result<i32> {
        let program = Program::of(command)?;
        // SAFETY: it does nothing.
        let child = unsafe { program.start(&mut || Ok(()), None) }?;
        let wait = || rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        let (_, status) = rustix::io::retry_on_intr(wait)?.expect("there is a child");
        Ok(status.exit_status().unwrap_or(-1))
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn arguments_and_variables_arrive_and_nothing_is_inherited() {
        let mut command = shell(r#"test "$1 $KEY ${HOME-none}" = "a word value none" && exit 42"#);
        command.args(["sh", "a word"]).env("KEY", "value");
        assert_eq!(status(&command).unwrap(), 42);
    }

    #[test]
    fn a_program_is_looked_for_in_the_path_of_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seven");
        // No program: a shell runs it. Another process writes it, as children that other tests have just forked would hold
        // a file open that this one writes (ETXTBSY).
        let write = r#"echo 'exit $(($1 + 6))' >"$0""#;
        assert!(shell(write).arg(&file).status().unwrap().success());
        let mut command = Command::new("seven");
        let path = format!("/no/such/folder:/etc/passwd:{}:/bin", folder.path().display());
        command.arg("1").env("PATH", path);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(status(&command).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(status(&command).unwrap(), 7);
        command.env("PATH", "/no/such/folder");
        assert_eq!(status(&command).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_cannot_be_prepared_is_not_started() {
        let program = Program::of(&shell("exit 0")).unwrap();
        let mut refuse = || Err(io::Error::from_raw_os_error(libc::EPERM));
        // SAFETY: it makes a number an error.
        let error = unsafe { program.start(&mut refuse, None) }.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    }
}
