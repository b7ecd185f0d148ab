package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// hubIdle is how long a hub that a node has started runs without nodes.
const hubIdle = "30s"

// startHub starts softrnic hub in a new session, so that signals to this command do not reach the
// hub. The hub logs to a file in its directory. softrnic is the file of the command; "" is this
// program.
func startHub(softrnic, directory string) (err error) {
	if softrnic == "" {
		if softrnic, err = os.Executable(); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(filepath.Join(directory, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(softrnic, "hub", "--idle", hubIdle, "--directory", directory)
	cmd.Stderr, cmd.Dir = log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // reaps the hub if it ends before this process
	return nil
}
