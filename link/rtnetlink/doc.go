// Package rtnetlink hears from Linux how network interfaces and their addresses change (rtnetlink(7)), and goes on when changes
// were lost.
package rtnetlink
