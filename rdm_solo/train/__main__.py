from rdm_solo import cli

if __name__ == "__main__":
    with cli.errors_as_sentences():
        from rdm_solo.train.command import main
    main()
