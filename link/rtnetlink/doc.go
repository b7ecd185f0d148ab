// Package rtnetlink asks Linux about interfaces, routes and neighbours (rtnetlink(7)). It receives
// notifications about interfaces, addresses, routes and routing rules, and continues after some
// were lost.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package rtnetlink
