// Package key is `softrnic key`: it makes the private keys of nodes with --secure.
package key

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/link/wireguard"
)

// Command makes a private key, or shows the public key of one.
type Command struct {
	File   string `arg:"" type:"path" help:"The file with the private key."`
	Public bool   `help:"Only print the public key and the address of the private key that FILE has. FILE may be a configuration of wg(8), too."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `It writes a new private key to a new file, which only its owner may read, and prints the public key and the node's address. A node's
peers need its public key, and nobody else needs the private key. The format of the file is that of wg genkey.

  softrnic key server.key                                                      there
  softrnic key client.key                                                      here
  softrnic serve --secure server.key --peer CLIENT'S-KEY                       there
  softrnic rping -c -a SERVER'S-ADDRESS --secure client.key --peer SERVER'S-KEY@HOST   here`
}

// Run makes the key, unless --public is given, and prints the public one.
func (c *Command) Run(_ context.Context, e *cli.Env) error {
	key := wireguard.NewPrivateKey()
	if c.Public {
		text, err := node.ReadSecret(c.File)
		if err != nil {
			return err
		}
		f, err := wireguard.ParseFile(text)
		if err != nil {
			return fmt.Errorf("%s: %w", c.File, err)
		}
		key = f.PrivateKey
	} else if err := write(c.File, key); err != nil {
		return err
	}
	public := key.Public()
	_, err := fmt.Fprintf(e.Stdout, "%v\n%v\n", public, public.Addr())
	return err
}

// write writes a key to a new file.
func write(file string, key wireguard.SecretKey) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: it exists, and a key in it would be lost: use another file, or --public to see its public key", file)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, key.Encode())
	return errors.Join(err, f.Close())
}
