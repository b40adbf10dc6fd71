package main

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/pactsigner/pactsigner/agent"
	"github.com/pactsigner/pactsigner/agent/egress"
)

// messageView is what a message was read as.
type messageView struct {
	Type          string   `json:"type"`             // request, message, auth_required, a2a_error
	Effect        string   `json:"effect,omitempty"` // of a request's text
	ContextID     string   `json:"contextId,omitempty"`
	Receipt       bool     `json:"receipt,omitempty"`
	MissingScopes []string `json:"missingScopes,omitempty"`
}

func newCheckMessageCmd(c *checker) *cobra.Command {
	return &cobra.Command{
		Use:   "message FILE|-",
		Short: "Check a message:send body, a reply or an A2A error",
		Long: `Check a body of message:send, or of an answer to it; which of them it is, it
says itself. A request is held to what Providers accept and agents send, and its
effect is computed; a reply to what agents can read; an error to the table of
PACT's errors.`,
		Example: `  pactctl check message request.json
  echo '{"message": {"messageId": "m", "role": "ROLE_USER",
    "parts": [{"text": "Hi?"}]}}' |
    pactctl check message -`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			doc, err := c.read(cmd.Context(), args[0], egress.Message)
			if err != nil {
				return c.unread("message", err)
			}
			r := checkMessage(doc.data)
			v := r.Message
			return c.report(r, "Type", v.Type, "Effect", v.Effect, "Context", v.ContextID, "Missing", strings.Join(v.MissingScopes, " "))
		},
	}
}

func checkMessage(data []byte) checked {
	var shape struct {
		Message struct {
			Role jsontext.Value `json:"role"`
		} `json:"message"`
		Task  jsontext.Value `json:"task"`
		Error jsontext.Value `json:"error"`
	}
	err := json.Unmarshal(data, &shape)
	switch {
	case err == nil && shape.Error != nil:
		return checkA2AError(data)
	case err == nil && (shape.Task != nil || string(shape.Message.Role) == `"ROLE_AGENT"`):
		return checkReply(data)
	}
	return checkRequest(data)
}

func checkRequest(data []byte) checked {
	r := checked{Kind: "message", Message: &messageView{Type: "request"}}
	text, problems := agent.CheckRequest(data)
	if r.Problems = problems; len(problems) == 0 {
		r.Message.Effect = agent.ClassifyText(text).String()
		if p := agent.CheckText(text); p != nil {
			r.Problems = []agent.Problem{*p}
		}
	}
	return r.decide()
}

func checkReply(data []byte) checked {
	reply := agent.ParseReply(200, agent.TypeA2A, "", data)
	v := &messageView{Type: string(reply.Kind), ContextID: reply.Message.ContextID, Receipt: reply.Message.Receipt != nil}
	r := checked{Kind: "message", Problems: reply.Problems, Message: v}
	switch reply.Kind {
	case agent.ReplyMessage:
		if v.ContextID == "" {
			r.advise("message.contextId is missing: the conversation cannot go on")
		}
		if strings.TrimSpace(reply.Message.Text) == "" {
			r.advise("the message has no text")
		}
		if reply.Message.OtherParts > 0 {
			r.advise("agents leave out %s that %s not text", plural(reply.Message.OtherParts, "part"), isAre(reply.Message.OtherParts))
		}
	case agent.ReplyAuthRequired:
		v.ContextID, v.MissingScopes = reply.StepUp.ContextID, reply.StepUp.MissingScopes
		if len(v.MissingScopes) == 0 {
			r.Problems = []agent.Problem{{Reason: "step_up_unsupported", Field: "task.metadata", Detail: "pact.missingScopes names no permission to ask for"}}
		}
	}
	return r.decide()
}

func isAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

func checkA2AError(data []byte) checked {
	reason, problems := agent.CheckA2AError(data)
	r := checked{Kind: "message", Problems: problems, Message: &messageView{Type: string(agent.ReplyA2AError)}}
	if reason != "" {
		r.advise("%s", fmt.Sprintf("agents read it as %s", reason))
	}
	return r.decide()
}

// decide sets verdict and reason by the problems.
func (r checked) decide() checked {
	if r.OK = len(r.Problems) == 0; r.OK {
		r.Verdict = "ok"
	} else {
		r.Verdict, r.Reason = "refused", r.Problems[0].Reason
	}
	return r
}
