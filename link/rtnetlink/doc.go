// Package rtnetlink receives Linux's notifications about network interfaces and their addresses
// (rtnetlink(7)), and continues after some were lost.
package rtnetlink
