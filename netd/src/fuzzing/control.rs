//! Requests of a control client: protocol buffers as they come from the socket, and the line of an HTTP request.

use podvirt_proto::netd::v1 as proto;
use prost::Message;

use super::Bytes;
use crate::ctl::fuzz;

/// Runs one input.
pub fn control(data: &[u8]) {
    let mut b = Bytes::new(data);
    match b.u8() % 5 {
        0 => {
            if let Ok(request) = proto::AddPortsRequest::decode(b.rest()) {
                check_rules(&request.rules);
            }
        }
        1 => {
            if let Ok(request) = proto::RemovePortsRequest::decode(b.rest()) {
                check_rules(&request.rules);
            }
        }
        2 => {
            if let Ok(request) = proto::ListFlowsRequest::decode(b.rest()) {
                let _ = usize::try_from(request.limit);
            }
        }
        3 => {
            let _ = proto::StatusRequest::decode(b.rest());
        }
        _ => {
            let request = b.rest();
            if let Some((method, path)) = fuzz::http_target(request) {
                assert!(!method.contains(' ') && !path.contains(['?', ' ', '\r']), "{method} {path}");
            }
        }
    }
}

/// What is taken is what was sent, and what is refused names its field.
fn check_rules(sent: &[proto::PortRule]) {
    match fuzz::rules(sent) {
        Ok(rules) => {
            assert_eq!(rules.len(), sent.len());
            for (rule, sent) in rules.iter().zip(sent) {
                assert!(rule.pod != 0 && rule.guest != 0, "port 0");
                assert_eq!((u32::from(rule.pod), u32::from(rule.guest)), (sent.pod, sent.guest));
                assert_eq!(fuzz::rule_to_proto(*rule), *sent);
            }
        }
        Err(status) => {
            let text = status.message();
            assert!(text.contains("rules") && text.len() < 200, "{text}");
        }
    }
}
