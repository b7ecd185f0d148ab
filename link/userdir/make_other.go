//go:build !unix

package userdir

// ownedByOther returns false: processes on these systems do not change their user.
func ownedByOther(string) bool { return false }

// These systems have no /run, and a directory for temporary files for each user.
func taken(string) bool    { return false }
func writable(string) bool { return false }
