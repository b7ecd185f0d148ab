//go:build !linux

package query

// descends reports whether process pid is ancestor. Descendants are not found on this system.
func descends(pid, ancestor int) bool { return pid == ancestor }
