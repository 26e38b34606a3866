//! The launcher as init: one process that waits for all others, and one that does the work.

#[cfg(test)]
mod init {
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    fn launcher(args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_virt-launcher"));
        command.arg("--init").args(args).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn example() -> String {
        format!("{}/../examples/vmi-netd.yaml", env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn the_childs_exit_code_becomes_inits() {
        let ok = launcher(&["standalone", "--check", "--vmi", &example()]).status().unwrap();
        assert_eq!(ok.code(), Some(0));
        let missing = launcher(&["standalone", "--check", "--vmi", "/nonexistent"]).status().unwrap();
        assert_eq!(missing.code(), Some(1));
    }

    #[test]
    fn a_failed_machines_container_is_kept_until_it_gets_a_signal() {
        let pod = [
            "pod",
            "--name",
            "m",
            "--namespace",
            "n",
            "--uid",
            "u",
            "--simulate-crash",
            "--keep-after-failure",
        ];
        let mut init = launcher(&pod).spawn().unwrap();
        // The child ends at once.
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert_eq!(init.try_wait().unwrap(), None);
        kill(Pid::from_raw(i32::try_from(init.id()).unwrap()), Signal::SIGTERM).unwrap();
        assert_eq!(init.wait().unwrap().code(), Some(1));
    }

    #[test]
    fn signals_are_passed_on_and_a_death_by_signal_is_told() {
        // It waits for a manifest that does not come.
        let mut init =
            launcher(&["standalone", "--check", "--vmi", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        let child = only_child(&init);
        let pid = Pid::from_raw(i32::try_from(init.id()).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        assert_eq!(init.wait().unwrap().code(), Some(128 + 15));
        assert!(!Path::new(&format!("/proc/{child}")).exists(), "no child is left behind");
    }

    /// Waits until init has started its child, after which no signal can be lost.
    fn only_child(init: &Child) -> String {
        let children = format!("/proc/{0}/task/{0}/children", init.id());
        loop {
            if let Some(child) = std::fs::read_to_string(&children).unwrap().split_whitespace().next() {
                return child.to_owned();
            }
            std::thread::yield_now();
        }
    }
}
