// Package rtnetlink receives Linux's notifications about network interfaces and their addresses
// (rtnetlink(7)), and continues after some were lost.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package rtnetlink
