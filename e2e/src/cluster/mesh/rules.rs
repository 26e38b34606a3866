//! How the pod's packets come to a mesh's proxy: what the meshes write into the pod's network namespace, for nft.
//!
//! The hooks, priorities, conditions and their order are those of Istio's and of Linkerd's own rules, which both write by
//! iptables unless they are told otherwise: to the kernel that is the same. Each is written for one family.

/// The user of Istio's proxy.
pub const ISTIO: u32 = 1337;
/// The user of Linkerd's proxy.
pub const LINKERD: u32 = 2102;
/// Where a kubelet's probes of a pod in ambient come from, by a rule on the node.
pub const PROBES: [&str; 2] = ["169.254.7.127", "e9ac:1e77:90ca:399f:4d6d:ece2:2f9b:3164"];

fn both(table: impl Fn(&str, usize) -> String) -> String {
    [("ip", 0), ("ip6", 1)].map(|(family, n)| table(family, n)).concat()
}

fn list(always: &str, more: &str) -> String {
    if more.is_empty() { always.to_owned() } else { format!("{always}, {more}") }
}

/// Istio's sidecar in its REDIRECT mode with all inbound ports but `past`, a list. What comes in by the interfaces `inside`,
/// such a list as well, is what the pod sends.
pub fn istio(past: &str, inside: &str) -> String {
    let past = list("15020, 15021, 15090", past);
    let inside: String = inside
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| format!("iifname {name} meta l4proto tcp redirect to :15001\niifname {name} return\n"))
        .collect();
    both(|family, n| {
        let (loopback, proxy) = [("127.0.0.1", "127.0.0.6"), ("::1", "::6")][n];
        let owner = |kind: &str| {
            format!(
                "oifname lo {family} daddr != {loopback} tcp dport != 15008 meta {kind} {ISTIO} redirect to :15006
                 oifname lo meta {kind} != {ISTIO} return
                 meta {kind} {ISTIO} return\n"
            )
        };
        format!(
            "table {family} istio {{
               chain prerouting {{
                 type nat hook prerouting priority dstnat;
                 {inside}tcp dport 15008 return
                 tcp dport {{ {past} }} return
                 meta l4proto tcp redirect to :15006
               }}
               chain output {{
                 type nat hook output priority -100;
                 oifname lo {family} saddr {proxy} return
                 {}{}
                 {family} daddr {loopback} return
                 meta l4proto tcp redirect to :15001
               }}
             }}\n",
            owner("skuid"),
            owner("skgid"),
        )
    })
}

/// Linkerd's proxy-init with all ports but its own.
pub fn linkerd() -> String {
    both(|family, _| {
        format!(
            "table {family} linkerd {{
               chain prerouting {{
                 type nat hook prerouting priority dstnat;
                 tcp dport {{ 4190, 4191, 4567, 4568 }} return
                 meta l4proto tcp redirect to :4143
               }}
               chain output {{
                 type nat hook output priority -100;
                 meta skuid {LINKERD} return
                 oifname lo return
                 tcp dport {{ 4567, 4568 }} return
                 meta l4proto tcp redirect to :4140
               }}
             }}\n"
        )
    })
}

/// Istio's ambient mode: redirection in the pod.
pub fn ambient() -> String {
    both(|family, n| {
        let (loopback, probe) = (["127.0.0.1", "::1"][n], PROBES[n]);
        format!(
            "table {family} ambient {{
               chain mangle_prerouting {{
                 type filter hook prerouting priority mangle;
                 meta mark & 0xfff == 0x539 ct mark set ct mark & 0xfffff000 | 0x111
               }}
               chain mangle_output {{
                 type route hook output priority mangle;
                 ct mark & 0xfff == 0x111 meta mark set ct mark
               }}
               chain prerouting {{
                 type nat hook prerouting priority dstnat;
                 {family} saddr {probe} meta l4proto tcp accept
                 {family} daddr != {loopback} tcp dport != 15008 meta mark & 0xfff != 0x539 redirect to :15006
               }}
               chain output {{
                 type nat hook output priority -100;
                 {family} daddr {probe} meta l4proto tcp accept
                 meta l4proto tcp meta mark & 0xfff == 0x111 accept
                 {family} daddr != {loopback} oifname lo accept
                 {family} daddr != {loopback} meta l4proto tcp meta mark & 0xfff != 0x539 redirect to :15001
               }}
             }}\n"
        )
    })
}

/// Beside [`ambient`]: what is marked as an answer to the proxy is led to it.
pub const AMBIENT_ROUTES: &str = "ip rule add fwmark 0x111/0xfff pref 32764 lookup 100
     ip route add local 0.0.0.0/0 dev lo table 100
     ip -6 rule add fwmark 0x111/0xfff pref 32764 lookup 100
     ip -6 route add local ::/0 dev lo table 100\n";
