// Package libnbd stands where CDI's imports from VMware have their library, which the test bed is built without.
package libnbd
