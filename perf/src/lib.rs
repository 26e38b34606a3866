//! What the runner and the agent share: streams that are compared byte by byte.

pub mod ramp;
