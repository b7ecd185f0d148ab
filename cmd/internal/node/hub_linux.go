package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// hubIdle is how long a hub that a node has started goes on without nodes.
const hubIdle = "30s"

// startHub starts softrnic hub in a session of its own, so that what ends this command does not end the hub. What it logs is in
// its directory. softrnic is the file of the command; "" is this program.
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
	go func() { _ = cmd.Wait() }() // so that it is no zombie if it ends before this process
	return nil
}
