//! Help texts: the name the program goes by, examples, and which flags are shown where.
//!
//! Installed as `kubectl-virt` the program is kubectl's plugin and its users type `kubectl virt start`: usage and
//! examples then say that.

use std::ffi::OsString;
use std::path::Path;

use clap::{Args as _, CommandFactory as _, FromArgMatches as _};

use crate::args::{Cli, Global};

const ABOUT: &str = "controls virtual machine related operations on your kubernetes cluster.";

/// Examples of each command. `virtctl` in them stands for the name the program goes by.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "addvolume",
        "  # Plug the claim or DataVolume 'mydata' into a running virtual machine called 'myvm':
  virtctl addvolume myvm --volume-name=mydata

  # With a serial number by which the guest knows it, on the virtio bus:
  virtctl addvolume myvm --volume-name=mydata --serial=1234567890 --bus=virtio

The volume stays in the virtual machine's specification: it is there after a restart, too.",
    ),
    (
        "adm",
        "  # Show how much all components log:
  virtctl adm log-verbosity --all

  # Have virt-handler log more, and take back what else was set:
  virtctl adm log-verbosity --reset --virt-handler=7",
    ),
    (
        "console",
        "  # Connect to the console of virtual machine instance 'myvmi':
  virtctl console myvmi

  # Wait one minute for it instead of five:
  virtctl console --timeout=1 myvmi

Ctrl+] or Ctrl+5 leaves the console.",
    ),
    (
        "create",
        "  # Write a manifest for a VirtualMachine with a random name:
  virtctl create vm

  # With a disk from a container image, 1 GiB of memory and a user with an SSH key:
  virtctl create vm --name=myvm --memory=1Gi --volume-containerdisk=src:my.registry/my-image:my-tag \\
    --user=jdoe --ssh-key='ssh-ed25519 AAAA...'

  # With a claim as its disk, and keys from a Secret that the guest's agent sets:
  virtctl create vm --volume-pvc=src:my-pvc --access-cred=type:ssh,src:my-keys,user:jdoe

  # With a disk that CDI imports, and an empty one:
  virtctl create vm --volume-import=type:registry,url:docker://my.registry/my-image,size:10Gi \\
    --volume-import=type:blank,size:50Gi

  # Make it:
  virtctl create vm --name=myvm | kubectl create -f -

  # Write an instance type of the cluster and a preference of a namespace:
  virtctl create instancetype --name=small --cpu=1 --memory=1Gi
  virtctl create preference --name=linux --cpu-topology=cores --namespace=mynamespace",
    ),
    (
        "credentials",
        "  # Add an SSH key of user jdoe to the Secret that the virtual machine has for the user, or to a new one:
  virtctl credentials add-ssh-key --user=jdoe --file=id_ed25519.pub myvm

  # Remove it:
  virtctl credentials remove-ssh-key --user=jdoe --file=id_ed25519.pub myvm

  # Set a password, which no list of processes and no history of a shell has:
  virtctl credentials set-password --user=jdoe --password-file=secret.txt myvm
  pass show jdoe | virtctl credentials set-password --user=jdoe --password-file=- myvm

--user is the guest's user here, never the kubeconfig's. A Secret that the virtual machine does not own is changed with
--force only.",
    ),
    (
        "evacuate-cancel",
        "  # Let a virtual machine called 'myvm' stay on its node:
  virtctl evacuate-cancel vm myvm

  # Let all virtual machines stay on node 'mynode':
  virtctl evacuate-cancel node mynode

The migration that was made for it ends, unless the guest has moved. What else evicts, such as kubectl drain, marks the
virtual machine again, and a node with the drain taint is emptied all the same.",
    ),
    (
        "expand",
        "  # Expand a virtual machine called 'myvm':
  virtctl expand --vm myvm

  # Expand one that is in a file, which is not stored:
  virtctl expand --file myvm.yaml

  # Expand one from the standard input, as JSON:
  virtctl expand --file - --output json",
    ),
    (
        "expose",
        "  # Expose SSH of a virtual machine instance called 'myvm' on each node:
  virtctl expose vmi myvm --port=22 --name=myvm-ssh --type=NodePort

  # Expose port 8080 of a virtual machine as port 80:
  virtctl expose vm myvm --port=80 --target-port=8080 --name=myvm-web

  # Expose all ports that a replica set's machines list for the pod network:
  virtctl expose vmirs myvmirs --name=vmirs-service",
    ),
    (
        "fslist",
        "  # List the file systems of a virtual machine instance called 'myvm':
  virtctl fslist myvm",
    ),
    (
        "guestfs",
        "  # Start a shell with libguestfs' tools in a pod that has the claim 'mydata':
  virtctl guestfs mydata --image=quay.io/kubevirt/libguestfs-tools:v1.8.0

  # Where nodes have no KVM, with the claim's files for group 107:
  virtctl guestfs mydata --image=quay.io/kubevirt/libguestfs-tools:v1.8.0 --kvm=false --fsGroup=107

The claim is at /disk, or at /dev/vda where it is a block device. The pod is deleted with the shell's end.",
    ),
    (
        "guestosinfo",
        "  # Show what the guest's agent of a virtual machine instance called 'myvm' tells:
  virtctl guestosinfo myvm",
    ),
    (
        "image-upload",
        "  # Upload an image to a new DataVolume:
  virtctl image-upload dv fedora-dv --size=10Gi --image-path=/images/fedora.qcow2

  # Upload it to a DataVolume that is there:
  virtctl image-upload dv fedora-dv --no-create --image-path=/images/fedora.qcow2

  # Upload it to a new PersistentVolumeClaim, which says what machines of the image have by default:
  virtctl image-upload pvc fedora-pvc --size=10Gi --image-path=/images/fedora.qcow2 \\
    --default-instancetype=n1.medium --default-preference=fedora

  # Upload the files of an archive, by way of a proxy that CDI's configuration does not name:
  virtctl image-upload dv files-dv --size=10Gi --archive-path=/images/files.tar \\
    --uploadproxy-url=https://cdi-uploadproxy.mycluster.com

CDI (the Containerized Data Importer) is needed in the cluster.",
    ),
    (
        "memory-dump",
        "  # Dump the memory of a virtual machine called 'myvm' to the claim 'mydump':
  virtctl memory-dump get myvm --claim-name=mydump

  # Make the claim, and download the dump:
  virtctl memory-dump get myvm --claim-name=mydump --create-claim --output=memory.tar.gz --port-forward

  # Dump it anew to the same claim, in the place of the last dump:
  virtctl memory-dump get myvm

  # Download the last dump:
  virtctl memory-dump download myvm --output=memory.tar.gz

  # Let go of the claim, which keeps the dump:
  virtctl memory-dump remove myvm",
    ),
    (
        "migrate",
        "  # Migrate a virtual machine called 'myvm':
  virtctl migrate myvm

  # Migrate it to a node with a label:
  virtctl migrate myvm --addedNodeSelector=disk=fast",
    ),
    (
        "migrate-cancel",
        "  # Cancel the migration of a virtual machine called 'myvm':
  virtctl migrate-cancel myvm",
    ),
    (
        "objectgraph",
        "  # Print what a virtual machine called 'myvm' depends on:
  virtctl objectgraph myvm

  # The same of a virtual machine instance, without what it could do without, as YAML:
  virtctl objectgraph --vmi myvmi --exclude-optional --output=yaml

  # Print the storage alone:
  virtctl objectgraph myvm --selector=kubevirt.io/dependency-type=storage",
    ),
    ("pause", "  # Pause a virtual machine called 'myvm':\n  virtctl pause vm myvm"),
    (
        "permitted-devices",
        "  # List the devices that virtual machines may have:
  virtctl permitted-devices",
    ),
    (
        "port-forward",
        "  # Forward the local port 8080 to the same port of a virtual machine instance:
  virtctl port-forward vmi/myvmi 8080

  # Forward the local port 8080 to port 9090 of it, and 5353 to its DNS server:
  virtctl port-forward vmi/myvmi 8080:9090 udp/5353:53

  # Forward to a virtual machine in another namespace:
  virtctl port-forward vm/myvm/mynamespace 8080

All traffic goes through the Kubernetes API server: a Service is better for much of it. Each UDP sender
gets a stream of its own, which ends after two minutes of silence.",
    ),
    (
        "removevolume",
        "  # Unplug the volume 'mydata' from a running virtual machine called 'myvm':
  virtctl removevolume myvm --volume-name=mydata",
    ),
    (
        "reset",
        "  # Reset a virtual machine instance called 'myvmi':
  virtctl reset myvmi",
    ),
    (
        "restart",
        "  # Restart a virtual machine called 'myvm':
  virtctl restart myvm

  # The same without waiting for its guest, which may lose data:
  virtctl restart myvm --force --grace-period=0",
    ),
    (
        "scp",
        "  # Copy a file into the home directory of user jdoe:
  virtctl scp myfile jdoe@vmi/myvmi:myfile

  # Copy a directory to a virtual machine in another namespace:
  virtctl scp --recursive mydir/ jdoe@vm/myvm/mynamespace:mydir

  # Copy a file from a virtual machine instance:
  virtctl scp jdoe@vmi/myvmi:myfile .",
    ),
    (
        "soft-reboot",
        "  # Ask the guest of a virtual machine instance called 'myvmi' to reboot:
  virtctl soft-reboot myvmi",
    ),
    (
        "ssh",
        "  # Connect to virtual machine instance 'myvmi' as user jdoe:
  virtctl ssh jdoe@vmi/myvmi

  # Connect to virtual machine 'myvm' in another namespace with a key:
  virtctl ssh jdoe@vm/myvm/mynamespace --identity-file=~/.ssh/id_ed25519

  # Run a command; its exit code is passed on:
  virtctl ssh -l jdoe vmi/myvmi --command='systemctl is-system-running'",
    ),
    (
        "start",
        "  # Start a virtual machine called 'myvm':
  virtctl start myvm

  # Start it paused:
  virtctl start myvm --paused",
    ),
    (
        "stop",
        "  # Stop a virtual machine called 'myvm': its guest gets its grace period to shut down:
  virtctl stop myvm

  # Stop it at once, which may lose data:
  virtctl stop myvm --force --grace-period=0",
    ),
    ("unpause", "  # Unpause a virtual machine called 'myvm':\n  virtctl unpause vm myvm"),
    (
        "userlist",
        "  # List the users who are logged in on a virtual machine instance called 'myvm':
  virtctl userlist myvm",
    ),
    (
        "version",
        "  # Print the client and server versions for the current context:
  virtctl version",
    ),
    (
        "vmexport",
        "  # Create a VirtualMachineExport to export the volumes of a virtual machine:
  virtctl vmexport create vm1-export --vm=vm1

  # The same of a snapshot, and of a claim:
  virtctl vmexport create snap1-export --snapshot=snap1
  virtctl vmexport create pvc1-export --pvc=pvc1

  # Download a volume (--volume is not needed where there is one only):
  virtctl vmexport download vm1-export --volume=volume1 --output=disk.img.gz

  # Create a VirtualMachineExport, download an image by way of the API server, and delete the VirtualMachineExport:
  virtctl vmexport download vm1-export --vm=vm1 --volume=volume1 --format=raw --output=disk.img --port-forward

  # Go on with an image where the connection has broken, up to five times:
  virtctl vmexport download vm1-export --format=raw --output=disk.img --retry=5

  # Print the manifest of the virtual machine, and the Secret with which CDI imports its volumes:
  virtctl vmexport download vm1-export --vm=vm1 --manifest --include-secret

  # Delete a VirtualMachineExport:
  virtctl vmexport delete vm1-export

The certificate of the server is checked by the one that the VirtualMachineExport tells, also with --port-forward and
--service-url. An image that is written to a file has holes where it has zeroes.",
    ),
    (
        "vnc",
        "  # Open the display of virtual machine instance 'myvmi' in a viewer:
  virtctl vnc myvmi

  # Start no viewer: the port to point one at is printed as {\"port\":5900}:
  virtctl vnc myvmi --proxy-only --port=5900

Viewers looked for: remote-viewer, vncviewer, xtigervncviewer, vinagre, krdc.",
    ),
];

/// The name users type, from the path the program was called by: a name that ends in `-virt` is a plugin's.
pub(crate) fn program_name(argv0: &str) -> String {
    let file = Path::new(argv0).file_name().and_then(|name| name.to_str()).unwrap_or("virtctl");
    let file = file.strip_suffix(".exe").unwrap_or(file);
    match file.strip_suffix("-virt") {
        Some(host) if !host.is_empty() => format!("{host} virt"),
        _ => "virtctl".into(),
    }
}

/// The parser for a program of that name.
fn command(program: &str) -> clap::Command {
    let footer = format!("Use \"{program} options\" for a list of the flags that every command takes.");
    let mut command = Cli::command()
        .bin_name(program)
        .about(format!("{program} {ABOUT}"))
        .after_help(format!(
            "Use \"{program} <COMMAND> --help\" for more information about a given command.\n{footer}"
        ))
        .max_term_width(100);
    for (name, examples) in EXAMPLES {
        let examples = examples.replace("virtctl ", &format!("{program} "));
        command =
            command.mut_subcommand(name, |sub| sub.after_help(format!("Examples:\n{examples}\n\n{footer}")));
    }
    command
}

/// Reads the command line.
///
/// # Errors
/// What clap found wrong, or the help text that was asked for.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let argv0 = arguments.first().and_then(|arg| arg.to_str()).unwrap_or_default();
    Cli::from_arg_matches(&command(&program_name(argv0)).try_get_matches_from(arguments)?)
}

/// The help of the whole program.
pub(crate) fn overview(program: &str) -> String {
    command(program).render_help().to_string()
}

/// The list of the global flags.
pub(crate) fn options() -> String {
    let mut listed = Global::augment_args(clap::Command::new("options"))
        .mut_args(|arg| arg.hide(false))
        .mut_arg("insecure_skip_tls_verify", |arg| arg.value_name("true|false"))
        .disable_help_flag(true)
        .help_template("The following options can be passed to any command:\n\n{options}")
        .max_term_width(100);
    listed.render_help().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_follows_how_the_program_was_called() {
        for (argv0, name) in [
            ("virtctl", "virtctl"),
            ("/usr/local/bin/virtctl", "virtctl"),
            ("/root/.krew/bin/kubectl-virt", "kubectl virt"),
            ("oc-virt", "oc virt"),
            ("kubectl-virt.exe", "kubectl virt"),
            ("-virt", "virtctl"),
            ("", "virtctl"),
        ] {
            assert_eq!(program_name(argv0), name, "{argv0}");
        }
    }

    #[test]
    fn the_parser_is_consistent() {
        command("virtctl").debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        let with: Vec<_> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        let all: Vec<_> = command("virtctl")
            .get_subcommands()
            .filter(|sub| !sub.is_hide_set())
            .map(|sub| sub.get_name().to_owned())
            .collect();
        assert_eq!(all, with);
    }

    fn arguments(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn global_flags_stand_before_and_behind_the_command() {
        for line in ["virtctl -n blue start vm1", "virtctl start vm1 --namespace=blue"] {
            let cli = parse(&arguments(line)).unwrap();
            assert_eq!(cli.global.namespace.as_deref(), Some("blue"), "{line}");
        }
    }

    #[test]
    fn flags_take_upstreams_forms() {
        for (line, stdio) in [
            ("virtctl port-forward --stdio=true vmi/a 22", true),
            ("virtctl port-forward --stdio vmi/a 22", true),
            ("virtctl port-forward --stdio=false vmi/a 22", false),
            ("virtctl port-forward vmi/a 22", false),
        ] {
            let Some(crate::args::Command::PortForward(flags)) = parse(&arguments(line)).unwrap().command
            else {
                panic!("{line} is not read as port-forward")
            };
            assert_eq!(flags.stdio, stdio, "{line}");
            assert_eq!(flags.target, "vmi/a", "{line}");
        }
    }
}
