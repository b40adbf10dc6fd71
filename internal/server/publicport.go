package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// An issuer without a URL is named after the public listener. If that takes a free
// port, the port that it picked is part of the issuer's name: the data folder
// remembers it, and the next start takes it again.

func (s *Server) publicPortFile() string { return filepath.Join(s.cfg.Data, "public-port") }

// namedAfterPort says whether a freely picked public port names the issuer.
func (s *Server) namedAfterPort() bool {
	_, port, _ := net.SplitHostPort(s.cfg.Listeners.Public.Address) // validated
	return port == "0" && s.cfg.Issuers[0].URL == ""
}

// rememberedPort is the port to take again, "" if there is none.
func (s *Server) rememberedPort() (string, error) {
	if !s.namedAfterPort() {
		return "", nil
	}
	content, err := os.ReadFile(s.publicPortFile())
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the remembered public port: %w", err)
	}
	port := strings.TrimSpace(string(content))
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("the remembered public port: %s holds something else; write the port of the issuer's URL into it, or pass --public", s.publicPortFile())
	}
	return port, nil
}

// keepPort remembers the first port that was picked; the data folder is ours by
// now. If that port was taken, it stays remembered.
func (s *Server) keepPort() error {
	if !s.namedAfterPort() {
		return nil
	}
	_, port, err := net.SplitHostPort(s.public.Addr().String())
	if err != nil {
		return fmt.Errorf("the public port: %w", err)
	}
	remembered, err := s.rememberedPort()
	switch {
	case err != nil || remembered == port:
		return err
	case remembered == "":
		if err := writeSecret(s.publicPortFile(), port+"\n"); err != nil {
			return fmt.Errorf("remember the public port: %w", err)
		}
		return nil
	}
	s.info.Notes = append(s.info.Notes, "the remembered public port "+remembered+" is taken by another program, and the issuer is named after the port: this is another issuer, with other subjects, credentials and audiences. Free that port and start again to have the first one back.")
	return nil
}
