//! libvirt's events, for which the `virt` crate has no words: with [`super::job`] and [`super::bulk`] the only unsafe code of the launcher.
//!
//! libvirt calls back from the thread that runs its event loop. [`start_loop`] makes that thread, once in the
//! process and before the first connection is opened, as libvirt asks. A [`Subscription`] gives libvirt a boxed
//! sink for each registration; libvirt owns the box from then on and gives it back through `free`, which may
//! happen after the subscription is dropped. A sink therefore holds nothing that must end with a connection.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use virt::connect::Connect;
use virt_sys as sys;

use super::{Event, EventSink, HypervisorError, Stopped};

/// What libvirt holds for a registration.
struct Sink {
    domain: String,
    report: EventSink,
}

/// Registers libvirt's own event loop and gives it a thread.
///
/// # Errors
///
/// The loop or its thread cannot be made.
pub(super) fn start_loop() -> Result<(), HypervisorError> {
    static STARTED: OnceLock<Result<(), HypervisorError>> = OnceLock::new();
    STARTED.get_or_init(register).clone()
}

fn register() -> Result<(), HypervisorError> {
    let refused =
        |message: String| HypervisorError::Refused { action: "start libvirt's event loop", message };
    virt::event::event_register_default_impl().map_err(|e| refused(e.to_string()))?;
    std::thread::Builder::new()
        .name("libvirt-events".into())
        .spawn(|| {
            loop {
                if let Err(error) = virt::event::event_run_default_impl() {
                    // Only a failing poll(2) gets here; without a pause it would fill the log.
                    tracing::warn!(%error, "libvirt's event loop");
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            }
        })
        .map_err(|e| refused(e.to_string()))?;
    Ok(())
}

/// Registered callbacks; they end when this is dropped.
pub(super) struct Subscription {
    connection: Connect,
    callbacks: Vec<c_int>,
    closing: bool,
}

impl Subscription {
    /// Has events of the domain `name` reported to `sink`.
    ///
    /// # Errors
    ///
    /// The connection has no events.
    pub(super) fn new(connection: &Connect, name: &str, sink: &EventSink) -> Result<Self, HypervisorError> {
        let refused = |e: virt::error::Error| HypervisorError::Refused {
            action: "subscribe to events",
            message: e.message().to_owned(),
        };
        let mut subscription =
            Subscription { connection: connection.clone(), callbacks: Vec::new(), closing: false };
        let opaque = || {
            Box::into_raw(Box::new(Sink { domain: name.to_owned(), report: sink.clone() })).cast::<c_void>()
        };

        let lifecycle: unsafe extern "C" fn(
            sys::virConnectPtr,
            sys::virDomainPtr,
            c_int,
            c_int,
            *mut c_void,
        ) -> c_int = on_lifecycle;
        // SAFETY: libvirt declares one type for callbacks of every event and casts it back by the event's
        // number (VIR_DOMAIN_EVENT_CALLBACK does the same in C). For the lifecycle event that is
        // virConnectDomainEventCallback, the type of `on_lifecycle`. Function pointers have one size.
        let lifecycle = unsafe {
            std::mem::transmute::<
                unsafe extern "C" fn(
                    sys::virConnectPtr,
                    sys::virDomainPtr,
                    c_int,
                    c_int,
                    *mut c_void,
                ) -> c_int,
                unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, *mut c_void),
            >(lifecycle)
        };
        let agent: unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, c_int, c_int, *mut c_void) =
            on_agent;
        // SAFETY: as above; for this event the type is virConnectDomainEventAgentLifecycleCallback, `on_agent`'s.
        let agent = unsafe {
            std::mem::transmute::<
                unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, c_int, c_int, *mut c_void),
                unsafe extern "C" fn(sys::virConnectPtr, sys::virDomainPtr, *mut c_void),
            >(agent)
        };
        for (id, callback, required) in [
            (sys::VIR_DOMAIN_EVENT_ID_LIFECYCLE, lifecycle, true),
            (sys::VIR_DOMAIN_EVENT_ID_REBOOT, on_reboot as unsafe extern "C" fn(_, _, _), true),
            // Drivers without agents (libvirt's test driver) have no such event.
            (sys::VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, agent, false),
        ] {
            let opaque = opaque();
            // SAFETY: the connection is open. A null domain means every domain. `opaque` is a Sink that no other code
            // else has; libvirt hands it to `callback` and, in the end, to `free`.
            let number = unsafe {
                sys::virConnectDomainEventRegisterAny(
                    connection.as_ptr(),
                    std::ptr::null_mut(),
                    // The numbers are an enumeration below 30.
                    id.cast_signed(),
                    Some(callback),
                    opaque,
                    Some(free),
                )
            };
            if number < 0 {
                // SAFETY: the registration failed, so libvirt kept nothing and the box is ours again.
                unsafe { free(opaque) };
                if !required {
                    continue;
                }
                return Err(refused(virt::error::Error::last_error()));
            }
            subscription.callbacks.push(number);
        }

        let opaque = opaque();
        // SAFETY: as above; a connection has one close callback, and `connection` has none yet.
        let result = unsafe {
            sys::virConnectRegisterCloseCallback(connection.as_ptr(), Some(on_close), opaque, Some(free))
        };
        subscription.closing = result == 0;
        if result != 0 {
            // Drivers inside the process (libvirt's test driver) do not lose their connection and refuse.
            // SAFETY: as above, the box is ours again.
            unsafe { free(opaque) };
        }
        Ok(subscription)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        for number in &self.callbacks {
            // SAFETY: the connection is held open by `self.connection` and the number is a registration of it.
            // The result does not matter: on a broken connection there is nothing left to take back.
            let _ = unsafe { sys::virConnectDomainEventDeregisterAny(self.connection.as_ptr(), *number) };
        }
        if self.closing {
            // SAFETY: as above.
            let _ =
                unsafe { sys::virConnectUnregisterCloseCallback(self.connection.as_ptr(), Some(on_close)) };
        }
    }
}

/// Reports `event` if it is about the sink's own domain.
///
/// # Safety
///
/// `opaque` points to a Sink and `domain` is null or a valid domain, both for the length of the call.
unsafe fn report(domain: sys::virDomainPtr, opaque: *mut c_void, event: Event) {
    // SAFETY: the caller's promise; libvirt calls from one thread and frees only between calls.
    let Some(sink) = (unsafe { opaque.cast::<Sink>().as_ref() }) else { return };
    if !domain.is_null() {
        // SAFETY: the domain is valid; its name is a C string that lives as long as the domain.
        let name = unsafe { sys::virDomainGetName(domain) };
        if name.is_null() {
            return;
        }
        // SAFETY: not null, and a C string as said.
        if unsafe { CStr::from_ptr(name) }.to_bytes() != sink.domain.as_bytes() {
            return;
        }
    }
    (sink.report)(event);
}

unsafe extern "C" fn on_lifecycle(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    event: c_int,
    detail: c_int,
    opaque: *mut c_void,
) -> c_int {
    if let Some(event) = lifecycle(event, detail) {
        // SAFETY: libvirt passes a valid domain and what was registered.
        unsafe { report(domain, opaque, event) };
    }
    0
}

unsafe extern "C" fn on_reboot(_: sys::virConnectPtr, domain: sys::virDomainPtr, opaque: *mut c_void) {
    // SAFETY: libvirt passes a valid domain and what was registered.
    unsafe { report(domain, opaque, Event::Rebooted) };
}

unsafe extern "C" fn on_agent(
    _: sys::virConnectPtr,
    domain: sys::virDomainPtr,
    _: c_int,
    _: c_int,
    opaque: *mut c_void,
) {
    // SAFETY: libvirt passes a valid domain and what was registered.
    unsafe { report(domain, opaque, Event::Agent) };
}

unsafe extern "C" fn on_close(_: sys::virConnectPtr, _: c_int, opaque: *mut c_void) {
    // SAFETY: libvirt passes what was registered; there is no domain.
    unsafe { report(std::ptr::null_mut(), opaque, Event::Closed) };
}

unsafe extern "C" fn free(opaque: *mut c_void) {
    // SAFETY: libvirt calls this once for each registration, after its last callback, and no other code has the box.
    drop(unsafe { Box::from_raw(opaque.cast::<Sink>()) });
}

/// An event by libvirt's numbers; none for those the launcher has no use for.
fn lifecycle(event: c_int, detail: c_int) -> Option<Event> {
    Some(match u32::try_from(event).ok()? {
        sys::VIR_DOMAIN_EVENT_STARTED => Event::Started,
        sys::VIR_DOMAIN_EVENT_SUSPENDED => Event::Suspended,
        sys::VIR_DOMAIN_EVENT_RESUMED => Event::Resumed,
        sys::VIR_DOMAIN_EVENT_SHUTDOWN => Event::ShutDown,
        sys::VIR_DOMAIN_EVENT_CRASHED => Event::GuestCrashed,
        sys::VIR_DOMAIN_EVENT_STOPPED => Event::Stopped(match u32::try_from(detail).unwrap_or(u32::MAX) {
            sys::VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN => Stopped::Shutdown,
            sys::VIR_DOMAIN_EVENT_STOPPED_DESTROYED => Stopped::Destroyed,
            sys::VIR_DOMAIN_EVENT_STOPPED_CRASHED => Stopped::Crashed,
            sys::VIR_DOMAIN_EVENT_STOPPED_MIGRATED => Stopped::Migrated,
            sys::VIR_DOMAIN_EVENT_STOPPED_SAVED => Stopped::Saved,
            sys::VIR_DOMAIN_EVENT_STOPPED_FAILED => Stopped::Failed,
            _ => Stopped::Unknown,
        }),
        _ => return None,
    })
}
