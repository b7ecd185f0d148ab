// Package interfaces makes network interfaces for tests, in network namespaces of their own. Linux
// only.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package interfaces
