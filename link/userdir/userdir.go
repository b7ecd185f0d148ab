// Package userdir provides directories for unix sockets and locks. The processes of one user share
// them, and no other user can reach them. A directory of MakePublic is for a service of the
// machine.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package userdir

import (
	"os"
	"path/filepath"
	"strconv"
)

// run is the directory of running services. It is root's, except in tests.
var run = "/run"

// Default returns softrnic-UID in $SOFTRNIC_DIRECTORY, which is set in containers. Without that, it
// returns softrnic in $XDG_RUNTIME_DIR. If that is not set, or belongs to another user, as after a
// program has given up root's rights, it returns softrnic-UID in /run for root, and in the
// directory for temporary files for others. There another user can take the name first: then it is
// softrnic in /run/user/UID, if that exists.
func Default() string {
	uid := strconv.Itoa(os.Getuid())
	own := "softrnic-" + uid
	if dir := os.Getenv("SOFTRNIC_DIRECTORY"); filepath.IsAbs(dir) {
		return filepath.Join(dir, own)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && !ownedByOther(dir) {
		return filepath.Join(dir, "softrnic")
	}
	if uid == "0" && writable(run) {
		return filepath.Join(run, own)
	}
	dir := filepath.Join(os.TempDir(), own)
	if session := filepath.Join(run, "user", uid); taken(dir) && writable(session) {
		return filepath.Join(session, "softrnic")
	}
	return dir
}
